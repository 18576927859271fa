#!/usr/bin/env bash
# The report beside peers on a GPU, in parts that a short lease holds. From the repository root, with
# libverbatim_c.so in LIB: COMMIT=$(git rev-parse --short HEAD) LIB=build OUT=results bash bench/peers.sh PART
#   report  at most 575 s, the most telling rows first: the 24 dense shapes (ours and SDPA flash with
#           and without order, SDPA cuDNN), the 12 masks (64:8 heads, 8192 tokens: ours,
#           FlexAttention, flash where the mask is causal or full, varlen_attn where it is packed or
#           a window, too), FlexAttention's dense shapes
#   cudnn   at most 575 s: cudnn.flex_attention with and without order beside ours, the 24 dense
#           shapes, then the 12 masks (64:8 heads, 8192 tokens)
#   block   at most 100 s: transformer blocks of four presets, ours and SDPA flash
#   rest    as long as LIMIT says: cuDNN, efficient and math on the masks, efficient and math on
#           dense shapes, the masks with 64:64 heads and of 32768 tokens
# Rows go to $OUT/peers_PART.jsonl as they finish: a part that is cut keeps them, and the next call on
# the same machine goes on where it ended if the file is put back into $OUT.
# TRY="--seqlen 128 --heads 2:2 --head-dim 32 --batch 1" DEVICE=cpu tries report, cudnn and rest on a CPU.
PART=${1:?a part: report, cudnn, block or rest}
DEVICE=${DEVICE:-cuda}
PYTHON=${PYTHON:-python3}
OUT=${OUT:-results}
case $PART in block) : ${LIMIT:=100};; report | cudnn | rest) : ${LIMIT:=575};; *) echo "no such part: $PART"; exit 2;; esac
export VERBATIM_LIBRARY=${LIB:-$PWD/build}/libverbatim_c.so PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
export TORCHINDUCTOR_CACHE_DIR=${CACHE:=$(mktemp -d)}/inductor TRITON_CACHE_DIR=$CACHE/triton
export CUBLAS_WORKSPACE_CONFIG=:4096:8
mkdir -p $OUT
ROWS=$OUT/peers_$PART.jsonl
LOG=$OUT/peers_$PART.log
BENCH="$PYTHON -m verbatim_attn.bench"
SECONDS=0

# Measures rows until the part's time is over.
rows() {
  local left=$((LIMIT - SECONDS))
  [ $left -gt 20 ] || { echo "no time for $*"; return; }
  timeout -k 10 $left $BENCH "$@" --device $DEVICE --repeats 3 --commit "$COMMIT" \
    --resume $ROWS > /dev/null 2>> $LOG
  echo "exit $? (124: cut) after $SECONDS s, $(grep -c '"provider"' $ROWS) rows: $*"
}

# FlexAttention is compiled for every shape: several processes fill the caches, untimed and at once,
# each for at most two times WARM seconds.
warm() {
  timeout -k 5 ${WARM:-50} $BENCH "$@" --device $DEVICE --providers flex --repeats 1 --check none
}
DENSE="--set dense ${TRY:-}"
ANY=${TRY:+.*}  # length, in a trial
MASKS="--set longca ${TRY:---heads 64:8 --seqlen 8192}"
warm_all() {
  export TORCHINDUCTOR_COMPILE_THREADS=1
  local shapes=({causal,full}' '{512,1024,2048,4096,8192,16384}) i=0
  for mask in full causal full_sliding_window causal_sliding_window full_document causal_document share_question \
              causal_blockwise global_sliding prefix_lm_causal prefix_lm_document block_causal_document; do
    (warm $MASKS --match "^$mask "; warm $DENSE --match "${shapes[i]}\$") > /dev/null 2>&1 &
    i=$((i + 1))
  done
  wait
  unset TORCHINDUCTOR_COMPILE_THREADS
  echo "FlexAttention's caches are warm after $SECONDS s"
}

OURS=verbatim  # its rows have the backward without order, timed in turn
FLASH=torch:flash,torch:flash:deterministic
VARLEN=torch:varlen,torch:varlen:deterministic
CUDNN=cudnn:flex,cudnn:flex:deterministic
case $PART in
  report)
    rows $DENSE --providers $OURS,$FLASH,torch:cudnn
    warm_all
    rows $MASKS --providers $OURS,flex,$FLASH,$VARLEN
    rows $DENSE --providers flex
    ;;
  cudnn)
    rows $DENSE --providers $OURS,$CUDNN
    rows $MASKS --providers $OURS,$CUDNN
    ;;
  block)
    rows block --match '^(llama3-8b (8192|16384)|qwen2.5-7b 8192|llada-1b 4096|sd3.5-large 4096)$' ${TRY:-} \
      --providers verbatim,$FLASH
    ;;
  rest)
    rows $MASKS --providers torch:cudnn,torch:efficient,torch:efficient:deterministic,torch:math
    rows $DENSE --providers torch:efficient,torch:efficient:deterministic
    rows $DENSE --match " (${ANY:-512|4096|16384})\$" --providers torch:math
    rows --set longca ${TRY:---heads 64:64 --seqlen 8192} --providers $OURS,flex
    rows --set longca ${TRY:---heads 64:8 --seqlen 32768} --providers $OURS,flex
    ;;
esac
$BENCH --from $ROWS --json $OUT/peers_$PART.json --markdown $OUT/peers_$PART.md | cut -c1-150
