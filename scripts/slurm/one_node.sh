#!/usr/bin/env bash
# A real Slurm of one node, for the time of a command:
#
#   scripts/slurm/one_node.sh sinfo        exit code of the command, or 77 with the reason why it cannot work here
#
# munged, slurmctld and slurmd run in namespaces of their own (processes, network, mounts, host name): nothing of the
# machine's is seen or changed, and everything ends with the command, also after a kill -9 of this script. Needs root
# and Debian's slurm-wlm, munge and iproute2. Its files lie on a tmpfs over /etc/slurm.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
cannot() { printf 'skipped: %s\n' "$*" >&2; exit 77; }
if [ "${1:-}" != --inside ]; then
  [ "$(id -u)" -eq 0 ] || cannot "a Slurm of one's own needs root"
  for tool in munged slurmctld slurmd srun ip; do
    PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || cannot "no '$tool' here: apt-get install slurm-wlm munge iproute2"
  done
  isolate=(unshare --mount --pid --net --uts --fork --kill-child --mount-proc)
  "${isolate[@]}" true 2>/dev/null || cannot "the kernel allows no namespaces here"
  exec "${isolate[@]}" "$0" --inside "$@"
fi
shift
export PATH=$PATH:/usr/sbin:/sbin
hostname localhost
ip link set lo up
ip addr add 127.0.0.2/8 dev lo  # getaddrinfo takes a machine that has 127.0.0.1 alone for one without a network
dir=/etc/slurm
mkdir -p $dir
mount -t tmpfs -o mode=755 one_node $dir
mkdir $dir/{munge,spool,state,tmp}
(umask 077; head -c 1024 /dev/urandom >$dir/munge/key)
cat >$dir/slurm.conf <<CONF
ClusterName=one_node
SlurmctldHost=localhost
SlurmUser=root
# A job may start again five seconds, not two minutes, after it was requeued.
AuthInfo=socket=$dir/munge/socket,cred_expire=5
SchedulerParameters=sched_interval=1
StateSaveLocation=$dir/state
TmpFS=$dir/tmp
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
$(slurmd -C | sed -n 's/RealMemory=.*//p')
PartitionName=debug Nodes=ALL Default=YES MaxTime=60
CONF
munged --force --socket=$dir/munge/socket --key-file=$dir/munge/key --pid-file=$dir/munge/pid \
  --seed-file=$dir/munge/seed --log-file=$dir/munge/log --origin=127.0.0.1
slurmctld
slurmd
until [ "$(timeout 2 sinfo -h -o %t 2>/dev/null)" = idle ]; do
  [ $SECONDS -lt 20 ] || { tail $dir/*.log >&2; echo "error: the node does not come up" >&2; exit 1; }
  sleep 0.2
done
code=0
"$@" || code=$?
[ $code -eq 0 ] || tail -n 30 $dir/*.log >&2
exit $code
