# shellcheck shell=bash
# Sourced first: a script that is asked for -h or --help prints the comment at its top and ends here.
case ${1:-} in
  -h | --help) awk 'NR > 1 { if (!/^#( |$)/) exit; sub(/^# ?/, ""); if (!/^shellcheck/) print }' "$0"; exit ;;
esac
