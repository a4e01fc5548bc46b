#!/bin/sh
# Epilog= of slurm.conf: slurmd runs it as root where a job was, once the job's processes are gone.
#
# Slurm gives the job's GPUs to somebody else next. Where it does not keep GPUs from other jobs
# (ConstrainDevices=no), a program that is no process of the job may still be there. Then this ends
# with status 1, and Slurm drains the host ("Epilog error"): nobody gets GPUs that are in use.
# It ends nobody's program. What it found is in the system's log.
#
# SLURM_JOB_GPUS: the job's GPUs, as "0,3". Settings, by the environment of a wrapper of yours:
# GPUSHARE_PATIENCE: seconds that they may take to become empty. GPUSHARE_DEVICES: the devices'
# names without the number; they are looked at where there is no nvidia-smi.
PATH=${GPUSHARE_PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
devices=${GPUSHARE_DEVICES:-/dev/nvidia}
left=${GPUSHARE_PATIENCE:-10}

# Processes that compute on a GPU; a driver that does not answer counts as one.
uses() {
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --id="$1" --query-compute-apps=pid --format=csv,noheader || echo "nvidia-smi failed"
    else
        number=$(stat -L -c %t:%T "$devices$1") || echo "$devices$1 is not there"
        find /proc/[0-9]*/fd -type l -exec stat -L -c '%t:%T %n' {} + 2>/dev/null |
            sed -n "s|^$number /proc/\([0-9]*\)/.*|\1|p" | sort -u
    fi
}

for gpu in $(echo "${SLURM_JOB_GPUS:-}" | tr , ' '); do
    while found=$(uses "$gpu") && [ -n "$found" ]; do
        if [ "$left" -le 0 ]; then
            logger -t gpushare-epilog "job $SLURM_JOB_ID: GPU $gpu is still used: $(echo $found)"
            exit 1
        fi
        left=$((left - 1))
        sleep 1
    done
done
exit 0
