#!/bin/bash
# usage: crash_points.sh FOLDER POINTS LAUNCHER... PROGRAM
# Kills a 2-rank save at every point of the commit; afterwards the job must load the old or the new checkpoint, whole, at another
# rank count too, and be able to save the step again.
set -u
export OMPI_MCA_odls_base_sigkill_timeout=0  # mpirun does not wait for the ranks that it kills
folder=$1; points=$2; shift 2
program=("$@")
failed=0
launch() { local ranks=$1; shift; "${program[@]:0:${#program[@]}-1}" -n "$ranks" "${program[-1]}" "$@"; }
for point in $points; do
  rm -rf "$folder"; mkdir -p "$folder"
  launch 2 save "$folder" 10 || { echo "the first save failed"; exit 1; }
  launch 2 save "$folder" 20 "$point" > "$folder/crash.log" 2>&1 && { echo "$point: nothing crashed"; failed=1; }
  loaded=$(launch 2 load "$folder" 2> "$folder/load.log"); again=$(launch 1 load "$folder" 2>> "$folder/load.log")
  case "$loaded" in
    "10 whole" | "20 whole") ;;
    *) echo "$point: loaded '$loaded'"; cat "$folder/load.log"; failed=1 ;;
  esac
  [ "$loaded" = "$again" ] || { echo "$point: two ranks load '$loaded', one loads '$again'"; failed=1; }
  if ! launch 2 save "$folder" 20 || [ "$(launch 2 load "$folder")" != "20 whole" ]; then
    echo "$point: the step cannot be saved again"
    failed=1
  fi
  echo "$point: $loaded"
done
rm -rf "$folder"
exit $failed
