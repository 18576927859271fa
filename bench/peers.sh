#!/usr/bin/env bash
# The report beside peers on a GPU, in parts of at most LIMIT (240) seconds. From the repository root,
# with libverbatim_c.so in LIB: LIB=build OUT=results bash bench/peers.sh PART
#   dense_ours  24 shapes: ours, ours without order, SDPA flash (both modes)        ~ 190 s
#   dense_peers 24 shapes: SDPA cuDNN and efficient (both modes)                    ~ 190 s
#   dense_rest  24 shapes: FlexAttention, SDPA math                                 ~ 200 s
#   masks       12 masks, 64:8 heads, 8192 tokens (causal and full are the GQA rows): all peers ~ 230 s
#   masks64     12 masks, 64:64 heads, 8192 tokens: ours and FlexAttention          ~ 150 s
#   block       13 transformer blocks of the presets: ours, SDPA flash (both modes)  ~ 200 s
#   long        12 masks, 64:8 heads, 32768 tokens: ours and FlexAttention          ~ 200 s
# Rows go to $OUT/peers_PART.jsonl as they finish: a part that is cut keeps them, and a second call
# on the same machine goes on if the file is put back into $OUT. COMMIT=... names what was built.
PART=${1:?a part: dense_ours, dense_peers, dense_rest, masks, masks64, block or long}
DEVICE=${DEVICE:-cuda}
PYTHON=${PYTHON:-python3}
OUT=${OUT:-results}
LIB=${LIB:-$PWD/build}
LIMIT=${LIMIT:-240}
export VERBATIM_LIBRARY=$LIB/libverbatim_c.so PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CACHE_DIR=/tmp/py_inductor TRITON_CACHE_DIR=/tmp/py_triton CUBLAS_WORKSPACE_CONFIG=:4096:8
mkdir -p $OUT
START=$SECONDS
DET=deterministic
case $PART in
  dense_ours)  WHAT="--set dense"; PROVIDERS=verbatim,verbatim:unordered,torch:flash,torch:flash:$DET;;
  dense_peers) WHAT="--set dense"; PROVIDERS=torch:cudnn,torch:cudnn:$DET,torch:efficient,torch:efficient:$DET;;
  dense_rest)  WHAT="--set dense"; PROVIDERS=flex,torch:math;;
  masks)   WHAT="--set longca --heads 64:8 --seqlen 8192"
           PROVIDERS=verbatim,verbatim:unordered,flex,torch:flash,torch:flash:$DET,torch:cudnn,torch:efficient,torch:math;;
  masks64) WHAT="--set longca --heads 64:64 --seqlen 8192"; PROVIDERS=verbatim,verbatim:unordered,flex;;
  long)    WHAT="--set longca --heads 64:8 --seqlen 32768"; PROVIDERS=verbatim,verbatim:unordered,flex;;
  block)   WHAT=block; PROVIDERS=verbatim,torch:flash,torch:flash:$DET;;
  *) echo "no such part: $PART"; exit 2;;
esac
[ -n "$TRY" ] && WHAT="$WHAT $TRY"
bench() { $PYTHON -m verbatim_attn.bench $WHAT --device $DEVICE "$@"; }

# FlexAttention is compiled for every shape: several processes fill the caches first, untimed.
warm() { (timeout -k 5 ${WARM:-70} $PYTHON -m verbatim_attn.bench $WHAT --device $DEVICE --providers flex --repeats 1 \
          --check none --match "$1" > /tmp/warm.$RANDOM.txt 2>&1) & }
if [[ $PROVIDERS == *flex* ]]; then
  if [[ $WHAT == *dense* ]]; then
    for mask in causal full; do for length in 512 1024 2048 4096 8192 16384; do warm "$mask $length\$"; done; done
  else
    for mask in full causal full_sliding_window causal_sliding_window full_document causal_document share_question \
                causal_blockwise global_sliding prefix_lm_causal prefix_lm_document block_causal_document; do
      warm "^$mask "
    done
  fi
  wait
  echo "caches warm after $((SECONDS - START)) s"
fi
timeout -k 10 $((LIMIT - SECONDS + START)) $PYTHON -m verbatim_attn.bench $WHAT --device $DEVICE --providers $PROVIDERS --repeats 3 \
  --commit "$COMMIT" --resume $OUT/peers_$PART.jsonl --json $OUT/peers_$PART.json > $OUT/peers_$PART.txt 2> /tmp/peers_$PART.log
code=$?
rows=$(($(wc -l < $OUT/peers_$PART.jsonl) - 1))
echo "peers $PART: exit $code (124: cut, its rows are kept), $rows rows, $((SECONDS - START)) s"
[ $code = 0 ] || tail -5 /tmp/peers_$PART.log
[ $code = 124 ] && $PYTHON -m verbatim_attn.bench --from $OUT/peers_$PART.jsonl > $OUT/peers_$PART.txt 2>&1
tail -75 $OUT/peers_$PART.txt | cut -c1-150
