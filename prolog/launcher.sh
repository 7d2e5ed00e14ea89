# The part that all launchers share; `nvhc hooks install` writes it into each of them.
#
# A broken hook must never drain a node: whatever goes wrong in here ends in exit 0 and one log line.
# Slurm gives no PATH and no arguments, and waits for end-of-file on our output: children get none of it.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

PYTHON=@PYTHON@
CONFIG=@CONFIG@
STATE=@STATE@
RUN=@RUN@
SLURM_CONF_FILE=@SLURMCONF@
KILL_SWITCH=@KILLSWITCH@
DEADLINE=@SECONDS@

# syslog can hang as well, so it gets one second; without logger the line is lost and nothing else.
say() {
    timeout -s KILL 1 logger -t nvhc -p daemon.warning -- "$HOOK: $1" </dev/null >/dev/null 2>&1
}

# slurmd stops a hook by SIGTERM and, 10 ms later, SIGKILL: the hook is told first, so that it can end its children.
stop() {
    trap '' TERM INT HUP
    if [ -n "$!" ]; then
        kill -TERM "$!" 2>/dev/null
        sleep 0.2 </dev/null >/dev/null 2>&1
        kill -KILL "-$!" 2>/dev/null
    fi
    say "stopped by a signal"
    exit 0
}

# One line, printable, for a log.
last_words() {
    tail -c 1000 <&9 2>/dev/null | tail -n 1 | tr -c '[:print:]\n' '?'
}

# Nothing outside `timeout` looks at the interpreter: on a shared file system that is stuck, even
# asking whether a file exists may never return.
[ -e "$KILL_SWITCH" ] && exit 0
[ -d "$RUN" ] || mkdir -p "$RUN" 2>/dev/null

# slurmd starts health checks on top of one that hangs. The lock ends with this process, however that ends.
if [ "$HOOK" = health_check ]; then
    case "$SLURMD_NODENAME" in
        "" | */*) lock="$RUN/.health_check.lock" ;;
        *) lock="$RUN/.health_check.$SLURMD_NODENAME.lock" ;;
    esac
    if { true >>"$lock"; } 2>/dev/null && command -v flock >/dev/null; then
        exec 7>>"$lock"
        flock -n 7 || exit 0
    fi
fi

# What the hook writes to stderr goes to a file without a name: it leaves nothing behind, whatever happens.
errors="$RUN/.$HOOK.$$"
if { true >"$errors"; } 2>/dev/null; then
    exec 8>"$errors" 9<"$errors"
    rm -f "$errors"
else
    exec 8>/dev/null 9</dev/null
fi

# timeout runs the hook in a process group of its own and at the deadline kills that group, itself
# included: `wait` returns even when the hook is stuck in the driver and can not die.
trap stop TERM INT HUP
timeout -s KILL "$DEADLINE" "$PYTHON" -I -m slurm_nvhc.hooks "$HOOK" \
    --config "$CONFIG" --state "$STATE" --run "$RUN" --slurm-conf "$SLURM_CONF_FILE" \
    </dev/null >/dev/null 2>&8 7>&- 8>&- 9<&- &
wait "$!"
status=$?
trap '' TERM INT HUP
kill -KILL "-$!" 2>/dev/null
[ "$status" = 0 ] && exit 0

words=$(last_words)
# 97 from the prolog: it found a fault, has drained the node, and asks that the job does not start here.
if [ "$status" = 97 ] && [ "$HOOK" = prolog ]; then
    echo "nvhc: ${words:-failed on purpose}" # slurmd's log shows the output of a prolog that failed
    exit 1
fi
case "$status" in
    126 | 127) meaning="the interpreter $PYTHON is missing or can not be run" ;; # timeout's own codes for that
    *) meaning="137: killed, at the latest after $DEADLINE s" ;;
esac
say "ended with status $status ($meaning), nothing was decided${words:+: $words}"
exit 0
