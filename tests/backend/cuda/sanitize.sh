#!/bin/sh
# compute-sanitizer over every kernel on small shapes (small_test.cpp): a row for each tool and
# architecture, and under it what the tool reported, alike reports counted. What each report means,
# and why some are expected, is in docs/kernels/sanitizers.md; a report that is not there is new.
# A build with -DCMAKE_CUDA_FLAGS=-lineinfo has the lines.
# Usage: [TOOLS="memcheck racecheck"] sanitize.sh GPU_TEST [SECONDS for each row, 120]
set -eu
test=$1
limit=${2:-120}
command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; exit 0; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# One line a report: what, and where; without addresses, arguments and template arguments.
summary() {
  sed -E ':a; s/<[^<>]*>//; ta; s/\([a-zA-Z0-9_:, ]*\)//g; s/\+0x[0-9a-f]+//g
          s| in [^ ]*/([^/ ]+:[0-9]+)| in \1|' "$log" |
    awk '/^=+ (Error: |Warning: )?(Race|Potential|Barrier|Invalid|Uninit|Illegal|Program hit)/ {
           if (report) print report
           sub(/^=+ /, ""); report = $0; lines = 0; next
         }
         report && /^=+ +(at|and) / && lines++ < 2 { sub(/^=+ +/, ""); report = report " " $0 }
         END { if (report) print report }' |
    sed -E 's/ \[[0-9]+ hazards\]//' | sort | uniq -c | sort -rn
}

printf '%-10s %-5s %-8s %s\n' tool arch seconds result
for tool in ${TOOLS:-memcheck initcheck synccheck racecheck}; do
  for arch in sm90 sm80; do
    begin=$(date +%s)
    timeout -k 5 "$limit" compute-sanitizer --tool "$tool" --print-limit 100000 \
      "$test" --gtest_filter="Every/Small.Kernels/${arch}_*" >"$log" 2>&1 && code=0 || code=$?
    case $code in
      124 | 137) result="stopped after $limit s" ;;
      *) result="$(sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: //p' "$log"), $(
        sed -nE 's/^\[  (PASSED|FAILED|SKIPPED) *\] ([0-9]+ test).*/\2 \1 /p' "$log" |
          tr -d '\n')" ;;
    esac
    printf '%-10s %-5s %-8s %s\n' "$tool" "$arch" "$(($(date +%s) - begin))" "$result"
    summary
  done
done
