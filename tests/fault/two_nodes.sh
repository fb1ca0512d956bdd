#!/usr/bin/env bash
# Two simulated nodes with a network between them that can be cut, on this machine and without root:
#
#   two_nodes.sh CUT COMMAND...    runs COMMAND on n1; mpirun --host n1,n2 reaches n2 through the agent that this script puts into OMPI_MCA_plm_rsh_agent
#
# A node is a network namespace and a host name; a virtual cable joins the two, and goes down when the file CUT appears: no packet arrives, and
# nobody is told, as when a switch dies. Exit code 125 where such namespaces are not to be had.
set -u
if [ "${1-}" != inside ]; then
  unshare --user --map-root-user --net --uts --mount --pid --fork --mount-proc --kill-child true 2>/dev/null && command -v ip nsenter >/dev/null || exit 125
  exec unshare --user --map-root-user --net --uts --mount --pid --fork --mount-proc --kill-child "$0" inside "$@"
fi
cut=$2
shift 2
places=$(mktemp -d)
trap 'rm -rf "$places"' EXIT

unshare --net --uts sleep infinity &
n2=$!
in_n2() { nsenter --target "$n2" --net --uts "$@"; }
until in_n2 true 2>/dev/null && [ "$(readlink /proc/$n2/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
hostname n1
in_n2 hostname n2
ip link add cable1 type veth peer name cable2
ip link set cable2 netns "$n2"
ip address add 10.9.0.1/24 dev cable1
in_n2 ip address add 10.9.0.2/24 dev cable2
ip link set lo up
in_n2 ip link set lo up
ip link set cable1 up
in_n2 ip link set cable2 up
printf '127.0.0.1 localhost\n10.9.0.1 n1\n10.9.0.2 n2\n' >"$places/hosts"
mount --bind "$places/hosts" /etc/hosts

# What Open MPI takes for ssh: HOST COMMAND...
printf '#!/bin/bash\nshift\nexec nsenter --target %s --net --uts bash -c "$*"\n' "$n2" >"$places/agent"
chmod +x "$places/agent"
export OMPI_MCA_plm_rsh_agent="$places/agent" OMPI_MCA_btl=self,tcp OMPI_MCA_pml=ob1
export OMPI_MCA_btl_tcp_if_include=10.9.0.0/24 OMPI_MCA_oob_tcp_if_include=10.9.0.0/24
export PRTE_MCA_plm_ssh_agent="$places/agent" PRTE_MCA_prte_if_include=10.9.0.0/24  # the same in Open MPI 5
(
  until [ -e "$cut" ]; do sleep 0.02; done
  ip link set cable1 down
) &
"$@"
