/* The C interface from C: one head attends to two keys, and what is wrong is said. */
#define _POSIX_C_SOURCE 200112L /* setenv */
#include "verbatim/c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char* kSpec =
    "{\"problem\": {\"batch\": 1, \"q_heads\": 1, \"kv_heads\": 1, \"q_len\": 2, \"kv_len\": 2,"
    " \"head_dim\": 1, \"head_dim_v\": 1, \"dtype\": \"f32\", \"scale\": 1, \"softcap\": 0,"
    " \"dropout\": 0, \"seed\": 0},"
    " \"mask\": {\"name\": \"causal\", \"params\": {}}, \"options\": {\"order\": \"descending\"}}";

static verbatim_tensor tensor(float* data) {
  const verbatim_tensor t = {data, verbatim_f32, {1, 2, 1, 1}, {2, 1, 1, 1}};
  return t;
}

/* A peer without a process: takes everything, agrees, and has nothing to send. */
static const char* take(void* user, int32_t to, int64_t message, const void* bytes, int64_t size) {
  (void)to, (void)message, (void)bytes;
  *(int64_t*)user += size;
  return NULL;
}
static const char* give(void* user, int32_t from, int64_t message, void* bytes, int64_t size) {
  static const char kVerdict[] = "null"; /* which refuses nothing */
  const int64_t length = (int64_t)strlen(kVerdict);
  (void)user, (void)from;
  if (message >= 0) return "the line is cut";
  memcpy(bytes, size == 8 ? (const void*)&length : kVerdict, (size_t)size);
  return NULL;
}

static int failures = 0;
static void expect(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "failed: %s; last error: %s\n", what, verbatim_last_error());
  ++failures;
}

/* One rank of one, then rank 1 of 2, whose peer never sends what it is to. */
static void test_ranks(const verbatim_forward_tensors* forward, float* dout) {
  char spec[1024];
  int64_t sent = 0;
  const verbatim_transport transport = {&sent, NULL, take, give, 0, NULL};
  verbatim_dist* dist = NULL;
  const char* json = NULL;
  snprintf(spec, sizeof spec, "{\"dist\": {\"strategy\": \"ring\"}, %s", kSpec + 1);
  expect(verbatim_dist_create(spec, 1, 0, &transport, &dist) == verbatim_ok, "one rank");
  expect(verbatim_dist_describe(dist, &json) == verbatim_ok, "describe a rank");
  expect(strstr(json, "\"q\":[[0,0,2]]") != NULL, "which holds all rows");

  float o[2], lse[2], dq[2], dk[2], dv[2];
  verbatim_forward_tensors again = *forward;
  again.o = tensor(o), again.lse = lse;
  expect(verbatim_dist_forward(dist, &again, NULL) == verbatim_ok, "forward of a rank");
  expect(!memcmp(o, forward->o.data, sizeof o) && !memcmp(lse, forward->lse, sizeof lse),
         "the bits without ranks");
  const verbatim_backward_tensors backward = {
      again.q, again.k, again.v, again.o, tensor(dout), lse, tensor(dq), tensor(dk), tensor(dv)};
  expect(verbatim_dist_backward(dist, &backward, NULL) == verbatim_ok, "backward of a rank");
  expect(fabs(dv[0] - 1.25) < 1e-6 && fabs(dv[1] - 0.75) < 1e-6, "dV sums the weights");
  expect(sent == 0, "one rank sends nothing");
  expect(verbatim_dist_recorded(dist, &json) == verbatim_ok && !strcmp(json, "[]"), "no record");
  expect(verbatim_dist_record(dist, NULL) == verbatim_ok, "ask for a record");
  expect(verbatim_dist_forward(dist, &again, NULL) == verbatim_ok, "what is recorded");
  expect(verbatim_dist_recorded(dist, &json) == verbatim_ok &&
             strstr(json, "{\"pass\":\"forward\",\"kind\":\"launch\",\"bytes\":0,") != NULL,
         "its launch");
  verbatim_dist_destroy(dist);

  verbatim_peers* peers = NULL;
  expect(verbatim_peers_open("c-api-test", 1, 0, "cpu", 10, 10, &peers) == verbatim_ok, "one peer");
  memset(o, 0, sizeof o);
  expect(verbatim_dist_create_over_peers(spec, peers, &dist) == verbatim_ok, "a rank of peers");
  expect(verbatim_dist_forward(dist, &again, NULL) == verbatim_ok &&
             !memcmp(o, forward->o.data, sizeof o),
         "which has the bits");
  verbatim_dist_destroy(dist);
  verbatim_peers_close(peers);
  expect(verbatim_peers_open("c/api", 1, 0, "cpu", 10, 10, &peers) == verbatim_invalid_argument,
         "a name without /");

  static float rows[384], made[384], sums[384]; /* of a shard: tiles have 384 positions */
  const verbatim_tensor half = {rows, verbatim_f32, {1, 384, 1, 1}, {384, 1, 1, 1}};
  const verbatim_tensor other = {made, verbatim_f32, {1, 384, 1, 1}, {384, 1, 1, 1}};
  const verbatim_forward_tensors halves = {half, half, half, other, sums};
  const char* two =
      "{\"dist\": {\"strategy\": \"ring\", \"shard\": \"contiguous\"}, \"options\": {},"
      " \"mask\": {\"name\": \"full\", \"params\": {}}, \"problem\": {\"batch\": 1, \"q_heads\": 1,"
      " \"kv_heads\": 1, \"q_len\": 768, \"kv_len\": 768, \"head_dim\": 1, \"head_dim_v\": 1,"
      " \"dtype\": \"f32\", \"scale\": 1, \"softcap\": 0, \"dropout\": 0, \"seed\": 0}}";
  expect(verbatim_dist_create(two, 2, 1, &transport, &dist) == verbatim_ok, "rank 1 of 2");
  expect(sent > 0, "which shows its specification");
  expect(verbatim_dist_describe(dist, &json) == verbatim_ok, "describe rank 1");
  expect(strstr(json, "{\"q\":[[0,384,768]],\"kv\":[[0,384,768]]") != NULL, "its half");
  expect(verbatim_dist_forward(dist, &halves, NULL) == verbatim_device_error, "a cut line");
  expect(strstr(verbatim_last_error(), "rank 1 at step ") != NULL &&
             strstr(verbatim_last_error(), "from rank 0; got the line is cut") != NULL,
         "which names ranks and step");
  verbatim_dist_destroy(dist);

  expect(verbatim_dist_create(spec, 2, 2, &transport, &dist) == verbatim_invalid_argument,
         "there is no rank 2 of 2");
  expect(verbatim_dist_create(spec, 0, 0, &transport, &dist) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "got 0, expected 1 rank or more") != NULL,
         "and none of a world without ranks");
  expect(
      verbatim_peers_open("c-api-test", 0, 0, "cpu", 10, 10, &peers) == verbatim_invalid_argument &&
          strstr(verbatim_last_error(), "got 0, expected 1 rank or more") != NULL,
      "nor peers");
  snprintf(spec, sizeof spec, "{\"dist\": {\"strategy\": \"rong\"}, %s", kSpec + 1);
  expect(verbatim_dist_create(spec, 1, 0, &transport, &dist) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: ring") != NULL,
         "an unknown strategy, and the nearest");
  snprintf(spec, sizeof spec, "{\"dist\": {\"strategi\": \"ring\"}, %s", kSpec + 1);
  expect(verbatim_dist_create(spec, 1, 0, &transport, &dist) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: strategy") != NULL,
         "an unknown option, and the nearest");
  snprintf(spec, sizeof spec, "{\"dits\": {}, %s", kSpec + 1);
  expect(verbatim_dist_create(spec, 1, 0, &transport, &dist) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: dist") != NULL,
         "an unknown member, and the nearest");
}

/* TL code becomes CUDA C++; what cannot be compiled leaves no folder. */
static void test_translation(const char* code) {
  const char* const folder = "c_api_test.made";
  const char* json = NULL;
  expect(
      verbatim_tl_emit(code, "{}", &json) == verbatim_ok &&
          strstr(json, "{\"name\":\"forward_t4\",\"source\":\"// The forward of tl.1:") == json &&
          strstr(json, "\"arithmetic\":\"tl.1:") != NULL &&
          strstr(json, "\"arch\":\"75\"}") != NULL,
      "a program in CUDA C++");
  expect(verbatim_tl_emit(code, "{\"target\": \"a100\"}", &json) == verbatim_ok &&
             strstr(json, "\"name\":\"forward_a100\"") != NULL,
         "for another target");
  json = NULL;
  expect(verbatim_tl_emit("param pass = forward", "{}", &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "program:1:") != NULL && json == NULL,
         "a sketch is no TL code");
  expect(verbatim_tl_emit(code, "{\"sketch\": true}", &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "sketch") != NULL && json == NULL,
         "which is no option here");

  expect(verbatim_tl_build(code, folder, "{\"arch\": []}", &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: archs") != NULL,
         "archs have a name");
  expect(
      verbatim_tl_build(code, folder, "{\"archs\": \"sm_75\"}", &json) == verbatim_invalid_argument,
      "and are a list");
  expect(verbatim_tl_build("Copy", folder, "{}", &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "program:1:5: syntax") != NULL,
         "a program with a fault is not built");
  setenv("PATH", "/nowhere", 1);
  expect(
      verbatim_tl_build(code, folder, "{\"archs\": [\"sm_75\"]}", &json) == verbatim_unsupported &&
          strstr(verbatim_last_error(), "no nvcc on the PATH") != NULL,
      "nor without nvcc");
  struct stat made;
  expect(json == NULL && stat(folder, &made) != 0, "and nothing of it was written");
}

/* A kernel as text: faults with their edits, and a sketch that becomes TL code. */
static void test_tl(void) {
  const char* const sketch =
      "param pass = forward\nCopy Q from global to shared\nCompute Fill m with -inf\n"
      "Compute Fill l with 0\nCompute Fill O with 0\nfor i = 0:N\n"
      "Copy K from global to shared\nCopy V from global to shared\n"
      "Compute GEMM Q, K^T and get S\nCompute Mask S\nCompute Softmax S with m and l\n"
      "Compute GEMM S, V and accumulate O\nend\nCompute Divide O, l and get new O\n"
      "Compute LogSumExp m, l and get L\nCopy O from register to global\n"
      "Copy L from register to global\n";
  const char* const as_sketch = "{\"sketch\": true}";
  const char* text = NULL;
  expect(verbatim_tl_check(sketch, as_sketch, &text) == verbatim_ok && strcmp(text, "[]") == 0,
         "a sketch without a fault");
  expect(verbatim_tl_check(sketch, "{}", &text) == verbatim_ok &&
             strstr(text, "\"code\":\"parameter\",\"line\":1") != NULL,
         "which is no TL code");

  char wrong[1024];
  strcpy(wrong, sketch);
  memcpy(strstr(wrong, "K^T and get S"), "K and get S  ", 13);
  expect(verbatim_tl_check(wrong, as_sketch, &text) == verbatim_ok &&
             strstr(text, "\"code\":\"transpose\",\"line\":9,\"column\":17") != NULL &&
             strstr(text, "\"edit\":{") != NULL,
         "K without its transposition has a place and an edit");
  expect(verbatim_tl_fix(wrong, as_sketch, &text) == verbatim_ok &&
             strstr(text, "K^T and get S") != NULL,
         "which restores it");
  expect(verbatim_tl_check("Copy \xff", "{}", &text) == verbatim_ok &&
             strstr(text, "\"character\"") != NULL,
         "what is no UTF-8 is a fault");

  const char* const spec =
      "{\"problem\": {\"batch\": 1, \"q_heads\": 1, \"kv_heads\": 1, \"q_len\": 64,"
      " \"kv_len\": 64, \"head_dim\": 64, \"head_dim_v\": 64, \"dtype\": \"f16\","
      " \"scale\": 1, \"softcap\": 0, \"dropout\": 0, \"seed\": 0},"
      " \"target\": \"t4\", \"tile\": [64, 32]}";
  expect(verbatim_tl_reason(sketch, spec, &text) == verbatim_ok &&
             strstr(text, "param BN = 32") != NULL && strstr(text, "Reshape S") != NULL,
         "reasoning completes the sketch");
  char code[8192];
  expect(strlen(text) < sizeof code, "which is a page");
  snprintf(code, sizeof code, "%s", text);
  test_translation(code);
  expect(verbatim_tl_format("copy  Q from   global to shared", &text) == verbatim_ok &&
             strcmp(text, "Copy Q from global to shared\n") == 0,
         "one layout");
  verbatim_selected* selected = NULL;
  expect(verbatim_selected_create("{\"kernels\": 1}", &selected) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "kernel") != NULL,
         "a wrong member names the nearest");
  verbatim_selected_destroy(selected);

  expect(verbatim_tl_check(sketch, "{\"target\": \"h20\"}", &text) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: h200") != NULL,
         "an unknown target is answered with the nearest");
  expect(verbatim_tl_check(sketch, "{\"sketsh\": true}", &text) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: sketch") != NULL,
         "and so is an unknown option");
  expect(verbatim_tl_reason(wrong, spec, &text) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "program:9:17: transpose") != NULL,
         "a faulty sketch is refused with its faults");
}

static void test_blocks(void) {
  const int64_t row_begin[] = {0, 1, 2};
  const int32_t columns[] = {1, 0};
  verbatim_blocks blocks = {.q_len = 4,
                            .kv_len = 4,
                            .block_q = 2,
                            .block_k = 2,
                            .batch = 1,
                            .kv_heads = 1,
                            .row_begin = row_begin,
                            .row_begins = 3,
                            .columns = columns,
                            .column_count = 2};
  const char* json = NULL;
  char mask[512] = "";
  expect(verbatim_mask_from_blocks(&blocks, &json) == verbatim_ok, "a mask of blocks");
  strncpy(mask, json, sizeof mask - 1);
  uint8_t shown[16] = {0};
  expect(verbatim_mask_to_dense(mask, 1, 1, 4, 4, shown) == verbatim_ok && shown[2] && !shown[0] &&
             shown[8] && !shown[10],
         "its JSON names it");
  expect(verbatim_mask_release(mask) == verbatim_ok, "which is released once");
  expect(verbatim_mask_release(mask) == verbatim_invalid_argument, "and not twice");
  blocks.row_begins = 2;
  expect(verbatim_mask_from_blocks(&blocks, &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "row_begin") != NULL,
         "a wrong array is named");
  blocks.row_begin = NULL;
  expect(verbatim_mask_from_blocks(&blocks, &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "NULL") != NULL,
         "and so is one that is missing");
}

/* Keys of 2 rows: 0, and 1 and 3. */
static void test_rows(void) {
  const int64_t row_begin[] = {0, 1, 3};
  const int32_t begins[] = {0, 1, 3}, ends[] = {1, 2, 4}, touching[] = {1, 3, 4};
  const char* json = NULL;
  uint8_t shown[8] = {0};
  expect(verbatim_mask_from_rows(row_begin, begins, ends, 3, 1, 1, 2, 4, &json) == verbatim_ok &&
             verbatim_mask_to_dense(json, 1, 1, 2, 4, shown) == verbatim_ok && shown[0] &&
             !shown[1] && !shown[4] && shown[5] && !shown[6] && shown[7],
         "a mask of rows");
  expect(verbatim_mask_from_rows(row_begin, begins, touching, 3, 1, 1, 2, 4, &json) ==
                 verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "interval 1 of row 1") != NULL,
         "intervals that touch are named");
  expect(verbatim_mask_from_rows(NULL, begins, ends, 3, 1, 1, 2, 4, &json) ==
                 verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "row_begin") != NULL,
         "and so is an array that is missing");
}

static void test_missing_texts(void) {
  verbatim_attention* none = NULL;
  verbatim_dist* dist = NULL;
  verbatim_selected* selected = NULL;
  const char* json = NULL;
  int64_t sent = 0;
  const verbatim_transport transport = {&sent, NULL, take, give, 0, NULL};
  const verbatim_status all[] = {verbatim_attention_create(NULL, &none),
                                 verbatim_check(NULL),
                                 verbatim_mask_json(NULL, 2, 2, 1, &json),
                                 verbatim_mask_mod(NULL, 2, 2, 1, &json),
                                 verbatim_mask_area(NULL, 1, 1, 1, 2, 2, &sent),
                                 verbatim_mask_release(NULL),
                                 verbatim_dist_create(NULL, 1, 0, &transport, &dist),
                                 verbatim_selected_create(NULL, &selected),
                                 verbatim_tl_check(NULL, "{}", &json),
                                 verbatim_tl_check("", NULL, &json),
                                 verbatim_tl_format(NULL, &json)};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    expect(all[i] == verbatim_invalid_argument, "a text that is missing");
  expect(verbatim_attention_create(NULL, &none) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "got NULL") != NULL,
         "which is said");
}

/* Whether a call that was given NULL is refused, and says which argument that was. */
static void expect_missing(verbatim_status status, const char* argument) {
  expect(status == verbatim_invalid_argument && strstr(verbatim_last_error(), argument) != NULL &&
             strstr(verbatim_last_error(), "got NULL") != NULL,
         argument);
}

/* Handles, tensors and places of results that are missing; transports without functions. */
static void test_missing_addresses(const verbatim_attention* attention,
                                   const verbatim_forward_tensors* forward) {
  const char *const mask = "{\"name\": \"full\", \"params\": {}}", *json = NULL;
  const uint8_t dense[4] = {0};
  const verbatim_transport silent = {NULL, NULL, NULL, NULL, 0, NULL};
  verbatim_dist* dist = NULL;
  int64_t number = 0;
  expect_missing(verbatim_info(NULL), "result");
  expect_missing(verbatim_attention_create(kSpec, NULL), "attention");
  expect_missing(verbatim_attention_forward(NULL, forward, NULL), "attention");
  expect_missing(verbatim_attention_forward(attention, NULL, NULL), "tensors");
  expect_missing(verbatim_attention_backward(NULL, NULL, NULL), "attention");
  expect_missing(verbatim_attention_backward(attention, NULL, NULL), "tensors");
  expect_missing(verbatim_attention_workspace(NULL, verbatim_forward_pass, NULL, &number),
                 "attention");
  expect_missing(verbatim_attention_workspace(attention, verbatim_forward_pass, NULL, NULL),
                 "bytes");
  expect_missing(verbatim_attention_bytes(NULL, &number), "attention");
  expect_missing(verbatim_attention_bytes(attention, NULL), "bytes");
  expect_missing(verbatim_attention_plan(NULL, verbatim_forward_pass, &json), "attention");
  expect_missing(verbatim_attention_plan(attention, verbatim_forward_pass, NULL), "result");
  expect_missing(verbatim_attention_describe(NULL, &json), "attention");
  expect_missing(verbatim_attention_describe(attention, NULL), "result");
  expect_missing(verbatim_mask_json(mask, 2, 2, 1, NULL), "result");
  expect_missing(verbatim_mask_area(mask, 1, 1, 1, 2, 2, NULL), "area");
  expect_missing(verbatim_mask_to_dense(mask, 1, 1, 2, 2, NULL), "dense");
  expect_missing(verbatim_mask_from_dense(NULL, 1, 1, 2, 2, &json), "dense");
  expect_missing(verbatim_mask_from_dense(dense, 1, 1, 2, 2, NULL), "result");
  expect_missing(verbatim_mask_from_blocks(NULL, &json), "blocks");
  expect_missing(verbatim_mask_json(NULL, 2, 2, 1, &json), "mask");
  expect_missing(verbatim_dist_create(kSpec, 1, 0, NULL, &dist), "transport");
  expect_missing(verbatim_dist_create(kSpec, 2, 0, &silent, &dist), "transport.send");
  expect_missing(verbatim_dist_create(kSpec, 1, 0, &silent, NULL), "dist");
  expect_missing(verbatim_dist_create_over_peers(kSpec, NULL, &dist), "peers");
  expect_missing(verbatim_dist_forward(NULL, forward, NULL), "dist");
  expect_missing(verbatim_dist_backward(NULL, NULL, NULL), "dist");
  expect_missing(verbatim_dist_record(NULL, NULL), "dist");
  expect_missing(verbatim_dist_recorded(NULL, &json), "dist");
  expect_missing(verbatim_dist_describe(NULL, &json), "dist");
  expect_missing(verbatim_peers_open("c-api-missing", 1, 0, "cpu", 10, 10, NULL), "peers");
  expect_missing(verbatim_selected_create("{}", NULL), "selected");
  expect_missing(verbatim_selected_forward(NULL, forward, NULL, NULL), "selected");
  expect_missing(verbatim_selected_describe(NULL, &json), "selected");
  expect_missing(verbatim_tl_format("", NULL), "result");
}

/* Sizes without an array of so many entries: nothing is read or written. */
static void test_sizes(const verbatim_attention* attention,
                       const verbatim_forward_tensors* forward) {
  const char *const mask = "{\"name\": \"full\", \"params\": {}}", *json = NULL;
  const int64_t row_begin[] = {0, 0, 0};
  const int32_t key = 0;
  uint8_t dense[4] = {7, 7, 7, 7};
  const int64_t wrong[] = {0, -1, (int64_t)1 << 31, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    const int64_t size = wrong[i];
    const verbatim_status all[] = {
        verbatim_mask_to_dense(mask, size, 1, 2, 2, dense),
        verbatim_mask_to_dense(mask, 1, size, 2, 2, dense),
        verbatim_mask_from_dense(dense, size, 1, 2, 2, &json),
        verbatim_mask_from_dense(dense, 1, size, 2, 2, &json),
        verbatim_mask_from_rows(row_begin, &key, &key, 0, size, 1, 2, 2, &json),
        verbatim_mask_from_rows(row_begin, &key, &key, 0, 1, size, 2, 2, &json)};
    for (size_t k = 0; k < sizeof all / sizeof *all; ++k)
      expect(all[k] == verbatim_invalid_argument, "no number of heads");
    expect(strstr(verbatim_last_error(), "kv_heads is out of range") != NULL, "which is named");
  }
  expect(verbatim_mask_from_dense(dense, 1 << 24, 1 << 24, 1 << 30, 1 << 30, &json) ==
                 verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "no array has so many entries") != NULL,
         "an array larger than memory");
  const verbatim_blocks blocks = {.q_edges = row_begin,
                                  .k_edges = row_begin,
                                  .q_blocks = INT64_MAX,
                                  .k_blocks = 2,
                                  .batch = 1,
                                  .kv_heads = 1,
                                  .row_begin = row_begin,
                                  .row_begins = 3};
  expect(verbatim_mask_from_blocks(&blocks, &json) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "q_blocks is out of range; got 9223372036854775807"),
         "more blocks than a mask has positions");
  expect(dense[0] == 7 && json == NULL, "nothing was written");

  int64_t bytes = -1;
  expect(verbatim_attention_workspace(attention, (verbatim_pass)7, NULL, &bytes) ==
                 verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "no such pass; got 7") != NULL && bytes == -1,
         "there are two passes");
  const verbatim_run_options run = {.threads = -1};
  expect(verbatim_attention_forward(attention, forward, &run) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "threads is out of range; got -1") != NULL,
         "no work is done by fewer threads than none");
}

static void test_own_plan(const verbatim_attention* attention) {
  verbatim_attention* own = NULL;
  const char *json = NULL, *options = strstr(kSpec, "\"options\"");
  expect(verbatim_attention_plan(attention, verbatim_backward_pass, &json) == verbatim_ok, "dump");
  char spec[4096];
  snprintf(spec, sizeof spec, "%.*s\"options\": {\"plans\": [%s]}}", (int)(options - kSpec), kSpec,
           json);
  expect(!verbatim_attention_create(spec, &own) && !verbatim_attention_describe(own, &json) &&
             strstr(json, "gpu_to_gpu") != NULL,
         "a plan of one's own");
  verbatim_attention_destroy(own);
}

int main(void) {
  float q[] = {1, 1}, k[] = {0, (float)log(3)}, v[] = {8, 4}, o[2], lse[2];
  float dout[] = {1, 1}, dq[2], dk[2], dv[2];
  verbatim_attention* attention = NULL;
  expect(verbatim_attention_create(kSpec, &attention) == verbatim_ok, "create");

  char misspelt[1024];
  snprintf(misspelt, sizeof misspelt, "%s", kSpec);
  memcpy(strstr(misspelt, "options"), "optoins", strlen("optoins"));
  verbatim_attention* none = NULL;
  expect(verbatim_attention_create(misspelt, &none) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: options") != NULL,
         "a misspelt member, and the nearest");

  const verbatim_forward_tensors forward = {tensor(q), tensor(k), tensor(v), tensor(o), lse};
  expect(verbatim_attention_forward(attention, &forward, NULL) == verbatim_ok, "forward");
  expect(o[0] == 8 && fabs(o[1] - 5) < 1e-5, "the second query weighs 8 and 4 as 1 to 3");
  expect(fabs(lse[1] - log(4)) < 1e-6, "its LSE is log(1 + 3)");

  const verbatim_backward_tensors backward = {tensor(q),  tensor(k),    tensor(v),
                                              tensor(o),  tensor(dout), lse,
                                              tensor(dq), tensor(dk),   tensor(dv)};
  expect(verbatim_attention_backward(attention, &backward, NULL) == verbatim_ok, "backward");
  expect(fabs(dv[0] - 1.25) < 1e-6 && fabs(dv[1] - 0.75) < 1e-6, "dV sums the weights");

  test_ranks(&forward, dout);
  test_own_plan(attention);

  const char* json = NULL;
  expect(verbatim_attention_describe(attention, &json) == verbatim_ok, "describe");
  expect(strstr(json, "\"orders\":[\"descending\"]") != NULL, "the order that was asked for");

  int64_t bytes = -1;
  expect(verbatim_attention_workspace(attention, verbatim_backward_pass, NULL, &bytes) ==
                 verbatim_ok &&
             bytes == 0,
         "a CPU takes no workspace");
  expect(verbatim_attention_bytes(attention, &bytes) == verbatim_ok && bytes > 0,
         "mask and plans take memory");

  verbatim_forward_tensors wrong = forward;
  wrong.k.shape[1] = 3;
  expect(verbatim_attention_forward(attention, &wrong, NULL) == verbatim_invalid_argument,
         "a wrong shape is an invalid argument");
  expect(strstr(verbatim_last_error(), "shape of k") != NULL, "which names the tensor");
  test_missing_addresses(attention, &forward);
  test_sizes(attention, &forward);
  verbatim_attention_destroy(attention);

  expect(verbatim_check("cpu") == verbatim_ok, "no wait of a CPU expires");
  expect(verbatim_check("gpu") == verbatim_invalid_argument, "there is no device of that name");

  expect(verbatim_mask_json("{\"name\": \"cuasal\", \"params\": {}}", 2, 2, 1, &json) ==
             verbatim_invalid_argument,
         "an unknown mask is an invalid argument");
  expect(strstr(verbatim_last_error(), "causal_document") != NULL, "which lists the masks");

  expect(verbatim_mask_json("{\"name\": \"causal\", \"parms\": {}}", 2, 2, 1, &json) ==
                 verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "nearest: params") != NULL,
         "a misspelt member of a mask, and the nearest");

  /* Lengths of two batch entries, asked for three: nothing is written. */
  uint8_t dense[12];
  memset(dense, 7, sizeof dense);
  expect(verbatim_mask_to_dense("{\"name\": \"full\", \"params\": {\"key_lengths\": [2, 1]}}", 3, 1,
                                2, 2, dense) == verbatim_invalid_argument &&
             strstr(verbatim_last_error(), "expected 2, 1") != NULL && dense[0] == 7,
         "a mask of another batch");

  test_missing_texts();
  test_blocks();
  test_rows();
  test_tl();
  return failures != 0;
}
