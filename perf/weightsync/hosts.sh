#!/usr/bin/env bash
# Made-up hosts behind one switch, each with a network card of so many Mbit/s both ways, on this machine and without root:
#
#   hosts.sh HOSTS MBIT COMMAND...    runs COMMAND on h0; mpirun --host h0,h1,... reaches the others through the agent in OMPI_MCA_plm_rsh_agent
#
# A host is a network namespace and a host name. All share processors, memory and files. Exit code 125 where such namespaces or the limit are not to be had.
set -u
if [ "${1-}" != inside ]; then
  unshare --user --map-root-user --net --uts --mount --pid --fork --mount-proc --kill-child true 2>/dev/null && command -v ip tc nsenter >/dev/null || exit 125
  exec unshare --user --map-root-user --net --uts --mount --pid --fork --mount-proc --kill-child "$0" inside "$@"
fi
hosts=$2 mbit=$3
shift 3
places=$(mktemp -d)
trap 'rm -rf "$places"' EXIT

# Bursts as large as two of TCP's largest packets, and a queue that drops none.
limit_card() { tc qdisc add dev "$1" root tbf rate "${mbit}mbit" burst 128kb limit 4mb; }
export -f limit_card
export mbit

ip link set lo up
ip link add switch type bridge && ip link set switch up || exit 125
printf '127.0.0.1 localhost\n' >"$places/hosts"
pids=()
for ((i = 0; i < hosts; i++)); do
  unshare --net --uts sleep infinity &
  pid=$!
  until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ] && [ "$(readlink /proc/$pid/ns/uts)" != "$(readlink /proc/self/ns/uts)" ]; do sleep 0.02; done
  pids+=("$pid")
  ip link add "port$i" type veth peer name card netns "$pid"
  ip link set "port$i" master switch up
  nsenter --target "$pid" --net --uts bash -c "hostname h$i && ip address add 10.9.1.$((i + 1))/24 dev card && ip link set lo up && ip link set card up && limit_card card" || exit 125
  limit_card "port$i" || exit 125
  printf '10.9.1.%d h%d\n' $((i + 1)) "$i" >>"$places/hosts"
done
mount --bind "$places/hosts" /etc/hosts

# What Open MPI takes for ssh: HOST COMMAND...
{
  echo '#!/bin/bash'
  printf 'declare -A process=('
  for ((i = 0; i < hosts; i++)); do printf ' [h%d]=%d' "$i" "${pids[i]}"; done
  cat <<'AGENT'
)
host=$1
shift
exec nsenter --target "${process[$host]}" --net --uts bash -c "$*"
AGENT
} >"$places/agent"
chmod +x "$places/agent"
export OMPI_MCA_plm_rsh_agent="$places/agent" OMPI_MCA_btl=self,tcp OMPI_MCA_pml=ob1
export OMPI_MCA_btl_tcp_if_include=10.9.1.0/24 OMPI_MCA_oob_tcp_if_include=10.9.1.0/24
export PRTE_MCA_plm_ssh_agent="$places/agent" PRTE_MCA_prte_if_include=10.9.1.0/24  # the same in Open MPI 5
nsenter --target "${pids[0]}" --net --uts "$@"
