#!/bin/sh
# slurm-nvhc task prolog: hides from a task the GPUs that its node's prolog decided to hide.
#
# Slurm runs this before every task, as the job's user, and applies the lines
# "export NAME=value" and "print text" of its output. For a job without an
# exclusion file it ends after a few builtin commands and starts no process.
#
# It never takes a task's last GPU: a program that silently finds none computes
# on the CPU for days, and a node that fails its tasks attracts every job of the
# queue. The node's prolog has made sure that enough GPUs are left to the job; a
# task bound to just the hidden one keeps it, and says so. For the same reason
# whatever is not understood is left as it is, and the exit status is always 0.
#
# Nothing is trusted: the variables are the user's, and the file, though
# root's, may be damaged.

set -f # words are split here, never expanded to file names

node=${SLURMD_NODENAME:-}
job=${SLURM_JOB_ID:-${SLURM_JOBID:-}}
[ -n "$node" ] || { read -r node </proc/sys/kernel/hostname; node=${node%%.*}; } 2>/dev/null
case $job in '' | *[!0-9]*) exit 0 ;; esac
case $node in '' | .* | */*) exit 0 ;; esac
file=@RUN@/$node/narrow/$job
[ -f "$file" ] && [ -r "$file" ] || exit 0

LC_ALL=C
unset IFS
say() { printf 'print nvhc: %s\n' "$1"; }

# --- the file: which positions and UUIDs are hidden, kept, or another job's
constrain=unknown text='some GPUs hidden from this job' whole='' lines=0
hidden=' ' kept=' ' hidden_uuids=' ' all_uuids=' ' job_list=''
{
    read -r magic || magic=
    while [ "$magic" = 'nvhc-narrow 1' ] && [ "$lines" -lt 600 ] && read -r key a b c; do
        lines=$((lines + 1))
        case $key in
        constrain)
            case $a in yes | no) constrain=$a ;; esac
            ;;
        gpu)
            case $a in '' | *[!0-9]* | ?????*) continue ;; esac
            case $b in GPU-*) ;; *) continue ;; esac
            case $b in *[!0-9A-Za-z-]*) continue ;; esac
            all_uuids="$all_uuids$b "
            case $c in
            hide) hidden="$hidden$a " hidden_uuids="$hidden_uuids$b " job_list="$job_list $a" ;;
            keep) kept="$kept$a " job_list="$job_list $a" ;;
            esac
            ;;
        text) text="$a${b:+ $b}${c:+ $c}" ;;
        end) whole=1 && break ;;
        esac
    done
} <"$file" 2>/dev/null
if [ -z "$whole" ]; then
    say 'the list of GPUs to hide from this job can not be read; nothing is hidden'
    exit 0
fi

# expand LIST: positions "0-2,4" as words in $words; fails for anything else.
expand() {
    words=''
    rest=$1,
    while [ -n "$rest" ]; do
        item=${rest%%,*} rest=${rest#*,}
        low=${item%%-*} high=${item##*-}
        case $item in '' | *[!0-9-]* | *-*-* | -* | *-) return 1 ;; esac
        case $low in ?????*) return 1 ;; esac
        case $high in ?????*) return 1 ;; esac
        while [ "${low#0}" != "$low" ] && [ "$low" != 0 ]; do low=${low#0}; done
        while [ "${high#0}" != "$high" ] && [ "$high" != 0 ]; do high=${high#0}; done
        while [ "$low" -le "$high" ]; do words="$words $low" low=$((low + 1)); done
        [ ${#words} -le 4096 ] || return 1
    done
    [ -n "$words" ]
}

# of_job LIST: are all positions of "0-2,4" this job's on this node? Leaves them in $words.
of_job() {
    expand "$1" || return 1
    for position in $words; do
        case "$hidden$kept" in *" $position "*) ;; *) return 1 ;; esac
    done
}

# without LIST_OF_WORDS: $left = the positions that are not hidden, as a comma list; $count, $left_count
without() {
    left='' count=0 left_count=0
    for position in $1; do
        count=$((count + 1))
        case $hidden in *" $position "*) continue ;; esac
        left="$left${left:+,}$position" left_count=$((left_count + 1))
    done
}

# --- the step's positions. SLURM_STEP_GPUS is right in steps, but a batch script can have inherited it
# from the shell that submitted it; SLURM_JOB_GPUS is right in a batch script, but on the other nodes of a
# job steps inherit the batch node's. So: the first one that lies within this job's GPUs on this node.
list=''
for try in "${SLURM_STEP_GPUS:-}" "${SLURM_JOB_GPUS:-}"; do
    if [ -n "$try" ] && of_job "$try"; then
        list=$words
        break
    fi
done

old=${CUDA_VISIBLE_DEVICES-unset}
case $old in
unset)
    # Slurm bound nothing: --gpu-bind=none on 22.05, or a job of --exclusive without --gres, whose tasks get no
    # GPU variable and see all GPUs. Setting it would be a guess, saying nothing a lie. Where the task's own
    # positions are known and none of them is hidden, there is nothing to say.
    without "$list"
    if [ "$hidden" != ' ' ] && { [ -z "$list" ] || [ "$left_count" -lt "$count" ]; }; then
        say "nothing can be hidden because CUDA_VISIBLE_DEVICES is not set; wanted: $text"
    fi
    exit 0
    ;;
'' | NoDevFiles | -1) exit 0 ;; # a task without GPUs
esac

[ -n "${SLURM_STEP_GPUS:-}${SLURM_JOB_GPUS:-}" ] || list=$job_list

give_up() {
    say "nothing is hidden from this task because $1; wanted: $text"
    exit 0
}
[ ${#old} -le 4096 ] || give_up 'CUDA_VISIBLE_DEVICES is too long'
tokens=''
rest=$old,
while [ -n "$rest" ]; do
    token=${rest%%,*} rest=${rest#*,}
    # Blanks around the commas mean nothing (R12): the new list is written without them.
    while [ "${token# }" != "$token" ]; do token=${token# }; done
    while [ "${token% }" != "$token" ]; do token=${token% }; done
    case $token in '' | *[!0-9A-Za-z_/:.-]*) give_up 'the form of CUDA_VISIBLE_DEVICES is not known' ;; esac
    tokens="$tokens $token"
done

# nth LIST_OF_WORDS N: $found = word number N (from 0); fails when there is none
nth() {
    at=0
    for found in $1; do
        [ "$at" -ne "$2" ] || return 0
        at=$((at + 1))
    done
    return 1
}

# reading MODE: what the numbers in $old mean as positions, in $positions; fails when they can not mean that
#   node: positions themselves;  step, job: counted within the step's or the job's GPUs
reading() {
    positions=''
    for token in $tokens; do
        case $token in
        *[!0-9]*) continue ;;
        ?????*) return 1 ;;
        esac
        while [ "${token#0}" != "$token" ] && [ "$token" != 0 ]; do token=${token#0}; done
        case $1 in
        node) found=$token ;;
        step) nth "$list" "$token" || return 1 ;;
        job) nth "$job_list" "$token" || return 1 ;;
        esac
        case " $list " in *" $found "*) ;; *) return 1 ;; esac
        positions="$positions $found"
    done
}

# Under ConstrainDevices the numbers are counted within the step, else they are positions. Where the file's
# word does not fit them, another reading that does is taken.
case $constrain in yes) modes='step node job' ;; *) modes='node step job' ;; esac
understood=''
for mode in $modes; do
    if reading "$mode"; then
        understood=1
        break
    fi
done
[ -n "$understood" ] || give_up "the numbers in CUDA_VISIBLE_DEVICES do not fit this step's GPUs"

# one_uuid PREFIX: $found = the node's only UUID that begins so
one_uuid() {
    matches=0
    for uuid in $all_uuids; do
        case $uuid in "$1"*) found=$uuid matches=$((matches + 1)) ;; esac
    done
    [ "$matches" -eq 1 ]
}

# --- the new list: same form, same order
new='' gone=''
for token in $tokens; do
    case $token in
    *[!0-9]*)
        case $token in GPU-*) ;; *) give_up 'CUDA_VISIBLE_DEVICES names something that is not a whole GPU' ;; esac
        one_uuid "$token" || give_up "$token is not the beginning of exactly one GPU's UUID"
        case $hidden_uuids in *" $found "*) gone=1 && continue ;; esac
        ;;
    *)
        # shellcheck disable=SC2086 # the words of the list are the arguments
        set -- $positions
        position=$1
        shift
        positions="$*"
        case $hidden in *" $position "*) gone=1 && continue ;; esac
        ;;
    esac
    new="$new${new:+,}$token"
done
[ -n "$gone" ] || exit 0
if [ -z "$new" ]; then
    give_up 'it would be left without a GPU'
fi

printf 'export CUDA_VISIBLE_DEVICES=%s\n' "$new"
# Their twins, where they say the same.
[ "${GPU_DEVICE_ORDINAL:-}" != "$old" ] || printf 'export GPU_DEVICE_ORDINAL=%s\n' "$new"
[ "${ROCR_VISIBLE_DEVICES:-}" != "$old" ] || printf 'export ROCR_VISIBLE_DEVICES=%s\n' "$new"
[ "${ZE_AFFINITY_MASK:-}" != "$old" ] || printf 'export ZE_AFFINITY_MASK=%s\n' "$new"
# Lists of positions: those that are this job's on this node.
step_set=${SLURM_STEP_GPUS:-}
if [ -n "$step_set" ] && of_job "$step_set"; then
    without "$words"
    [ -z "$left" ] || [ "$left_count" -eq "$count" ] || printf 'export SLURM_STEP_GPUS=%s\n' "$left"
fi
# In a step on another node of the job it is the batch node's list, inherited.
if [ -n "${SLURM_JOB_GPUS:-}" ] && { [ -z "$step_set" ] || [ "${SLURM_JOB_NUM_NODES:-1}" = 1 ]; } && of_job "$SLURM_JOB_GPUS"; then
    without "$words"
    [ -z "$left" ] || [ "$left_count" -eq "$count" ] || printf 'export SLURM_JOB_GPUS=%s\n' "$left"
fi
# Counts the step's GPUs on the node, or (in a task bound to some of them) the job's.
for of in "$list" "$job_list"; do
    without "$of"
    if [ "${SLURM_GPUS_ON_NODE:-}" = "$count" ] && [ "$left_count" -gt 0 ]; then
        printf 'export SLURM_GPUS_ON_NODE=%s\n' "$left_count"
        break
    fi
done
say "$text"
exit 0
