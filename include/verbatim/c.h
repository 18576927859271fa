/* The C interface, for bindings of other languages: C99, and no type of CUDA.
 *
 * Functions that return a verbatim_status write their results only when it is verbatim_ok; else
 * verbatim_last_error() says what was wrong, such as an address that is NULL where it may not be.
 * Text that comes back belongs to the library and lasts until this thread calls it again. Handles
 * may be used by several threads at once. */
#ifndef VERBATIM_C_H
#define VERBATIM_C_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The kinds of verbatim/error.h, and whatever else went wrong. */
typedef enum verbatim_status {
  verbatim_ok,
  verbatim_invalid_argument,
  verbatim_unsupported,
  verbatim_invalid_plan,
  verbatim_device_error,
  verbatim_io_error,
  verbatim_internal_error
} verbatim_status;

typedef enum verbatim_dtype {
  verbatim_f32,
  verbatim_bf16,
  verbatim_f16,
  verbatim_e4m3 /* of q, k and v of a forward, whose o is verbatim_bf16 */
} verbatim_dtype;

/* A strided tensor in (batch, length, heads, dim) layout, in host memory or on the plan's device.
 * Strides count elements, and are 1 in the last dimension; those of inputs may be 0. */
typedef struct verbatim_tensor {
  void* data;
  verbatim_dtype dtype;
  int64_t shape[4];
  int64_t stride[4];
} verbatim_tensor;

/* Shapes: q and dq (batch, q_len, q_heads, head_dim), k and dk (batch, kv_len, kv_heads, head_dim),
 * v and dv (batch, kv_len, kv_heads, head_dim_v), o and dout (batch, q_len, q_heads, head_dim_v),
 * all of the problem's dtype. What is written is memory that no other tensor has. */
typedef struct verbatim_forward_tensors {
  verbatim_tensor q, k, v; /* in */
  verbatim_tensor o;       /* out */
  float* lse;              /* out (batch, q_heads, q_len), dense: natural log */
  /* Of verbatim_e4m3, in the memory of q, k and v, one a head; NULL: 1. */
  const float *q_scales, *k_scales, *v_scales;
} verbatim_forward_tensors;

typedef struct verbatim_backward_tensors {
  verbatim_tensor q, k, v, o, dout; /* in */
  const float* lse;                 /* in, as the forward wrote it */
  verbatim_tensor dq, dk, dv;       /* out */
} verbatim_backward_tensors;

typedef struct verbatim_run_options {
  void* stream;            /* CUDA: the cudaStream_t; NULL: the default stream */
  int threads;             /* CPU: at most so many, 0: all cores; changes no bit */
  const uint64_t* seed;    /* of the dropout; NULL: the problem's */
  const uint64_t* seed_at; /* instead: its address on the device, read when the work runs */
  double wait_limit;       /* CUDA: seconds that work waits for other work of the call before it
                            * gives up (verbatim_check); 0: 10. More than one task may take */
  void* workspace;         /* CUDA: what the call needs besides its tensors, on the device, at a
                            * multiple of 256, until its work ends; NULL: the library's own */
  int64_t workspace_bytes; /* of it: verbatim_attention_workspace() or more */
} verbatim_run_options;

typedef enum verbatim_pass { verbatim_forward_pass, verbatim_backward_pass } verbatim_pass;

/* What went wrong in this thread's last failed call; never NULL. */
const char* verbatim_last_error(void);

/* JSON: version, version of the contract, and names and summaries of the masks, arithmetics,
 * orders, placements and targets of TL. */
verbatim_status verbatim_info(const char** json);

/* A problem under a mask on a device, each pass planned once. */
typedef struct verbatim_attention verbatim_attention;

/* `spec` is JSON, such as
 *   {"problem": {"batch": 1, "q_heads": 8, "kv_heads": 2, "q_len": 4096, "kv_len": 4096,
 *                "head_dim": 128, "head_dim_v": 128, "dtype": "bf16", "softcap": 0, "dropout": 0,
 *                "seed": 0},
 *    "mask": {"name": "causal", "params": {}}, "options": {}}
 * All these members are required; "problem" may have a scale, else it is 1 / sqrt(head_dim). A mask
 * is a name of verbatim_info() with its parameters, or what the functions for masks below return.
 * "options" is an object with any of the members device, level, order, forward_order, placement,
 * tile ([q, kv], 0: the usual one), workers, arithmetic ("cpu", "sm80", "sm90"; empty: the
 * device's), defer_backward (true: where nothing of it is named here, it is planned when it is
 * first needed), kernels, a list that takes the place of the device's own, at most one a pass: on
 * a CPU texts of TL code, on a GPU paths of libraries (docs/tl.md), and plans, a list of plans in
 * place of those by rule, at most one a pass (docs/own-orders.md). */
verbatim_status verbatim_attention_create(const char* spec, verbatim_attention** attention);
void verbatim_attention_destroy(verbatim_attention* attention);

/* With device memory these only enqueue work on the stream; with host memory they wait for it.
 * `run` may be NULL. */
verbatim_status verbatim_attention_forward(const verbatim_attention* attention,
                                           const verbatim_forward_tensors* tensors,
                                           const verbatim_run_options* run);
verbatim_status verbatim_attention_backward(const verbatim_attention* attention,
                                            const verbatim_backward_tensors* tensors,
                                            const verbatim_run_options* run);

/* Bytes of workspace that a call with `run`, which may be NULL, needs; 0 on a CPU. */
verbatim_status verbatim_attention_workspace(const verbatim_attention* attention,
                                             verbatim_pass pass, const verbatim_run_options* run,
                                             int64_t* bytes);
/* Bytes of the host's memory that the mask and both passes take; one that is not planned yet counts
 * as the other. Who has the same mask or plans shares them. */
verbatim_status verbatim_attention_bytes(const verbatim_attention* attention, int64_t* bytes);

/* verbatim_device_error, and the tile in the message, when a call on `device` ("cpu", "cuda",
 * "cuda:N") gave up because one of its waits expired: all results of that call are NaN, also in the
 * replay of a graph. The next call on the device fails with the same; it is told once. Waits for
 * nothing: after a synchronization it has seen all that was before. */
verbatim_status verbatim_check(const char* device);

/* JSON: the whole plan of a pass, which "plans" of verbatim_attention_create() takes, edited or
 * not. */
verbatim_status verbatim_attention_plan(const verbatim_attention* attention, verbatim_pass pass,
                                        const char** json);

/* JSON: device, level, version of the contract, problem, mask (name, params, area), and for each
 * pass the names of its orders, tile, placement, workers, residency, fingerprint, arithmetic,
 * kernel and workspace_bytes; "backward" is null where there is none. */
verbatim_status verbatim_attention_describe(const verbatim_attention* attention, const char** json);

/* How bytes get from rank to rank: functions of the caller. Each returns NULL, or what went wrong
 * as text that lasts until the next call of any. Between two ranks, messages are received in the
 * sequence in which they are sent; `message` is a number for engines with tags or without order,
 * and below 0 in a comparison. */
typedef struct verbatim_transport {
  void* user;
  /* Memory for the messages that are sent next, where messages lie (on_device): the library makes
   * them there, one behind another, each is the caller's own again with its send(), and the rest
   * with the next room(). NULL, or what returns NULL: the library takes memory of its own, which
   * send() has to copy. */
  void* (*room)(void* user, int64_t size);
  /* Returns when the bytes may be overwritten: it must not wait until they are received. */
  const char* (*send)(void* user, int32_t to, int64_t message, const void* bytes, int64_t size);
  /* Returns when the bytes are there, or gives up. On a GPU they may come in sequence with the work
   * on the run's stream. */
  const char* (*receive)(void* user, int32_t from, int64_t message, void* bytes, int64_t size);
  /* Where the bytes of messages from 0 on lie when ranks compute on a GPU. 0: in pinned memory of
   * the host, to which the library copies them. Else on the GPU: they are read, overwritten and
   * written in sequence with the work on the run's stream. Those below 0 lie in the host's. */
  int32_t on_device;
  /* Called in front of each launch, or NULL: the work on the run's stream goes on when all that was
   * sent is taken. For sends that hold multiprocessors while they wait: chains of a launch wait for
   * each other, and so need all of these at once. */
  const char* (*settle)(void* user);
} verbatim_transport;

/* One rank's part of an attention that several ranks compute: context parallelism
 * (docs/context-parallel.md), with the bits of verbatim_attention for any world, strategy and
 * sharding. A handle serves one call at a time. */
typedef struct verbatim_dist verbatim_dist;

/* All ranks call this with the same `spec`: that of verbatim_attention_create(), and "dist", an
 * object with any of the members strategy, shard, ulysses_size and ring_window (DistOptions of
 * verbatim/dist.h). Ranks compare versions and specifications over `transport`, which lasts as long
 * as the handle. Where they differ every rank fails and names the first difference and the rank;
 * where one rank's input is bad, every rank says so. The number of a device ("cuda:1") is a rank's
 * own: ranks may share a GPU. */
verbatim_status verbatim_dist_create(const char* spec, int32_t world, int32_t rank,
                                     const verbatim_transport* transport, verbatim_dist** dist);
void verbatim_dist_destroy(verbatim_dist* dist);

/* The way between ranks whose devices are in one host: a receiver copies from the sender's memory,
 * a GPU by its copy engines, and no send waits (make_peers of verbatim/transport.h). One call at a
 * time uses it, of any of its handles. */
typedef struct verbatim_peers verbatim_peers;

/* All ranks call this with the same `name`, 1 to 200 characters without / that no other ranks of
 * the host use at the time, and the device of their tensors, as in "options" of a spec. Returns
 * when all are ready. `opening`: seconds from the call on in which they must be; `timeout`: that a
 * rank waits in a transfer. verbatim_unsupported where a device cannot read another's memory,
 * verbatim_device_error naming a rank that is not ready in time, verbatim_invalid_argument for a
 * bad or used name, another world, no such rank or seconds that are not above 0, verbatim_io_error
 * without shared memory. */
verbatim_status verbatim_peers_open(const char* name, int32_t world, int32_t rank,
                                    const char* device, double opening, double timeout,
                                    verbatim_peers** peers);
/* After verbatim_dist_destroy() of its handles. Waits until what was sent is taken. */
void verbatim_peers_close(verbatim_peers* peers);

/* verbatim_dist_create() over peers, of their world and rank, on their device. Work on a GPU that
 * waits for a message in vain ends: that call's results are of no use, and the next says so, as
 * does every call after one that failed. */
verbatim_status verbatim_dist_create_over_peers(const char* spec, const verbatim_peers* peers,
                                                verbatim_dist** dist);

/* All ranks call these, in the same sequence. The tensors are the rank's shard: batch 1, and as
 * length its rows of queries or keys, in the sequence of verbatim_dist_describe(), in memory of the
 * device, the heads of a row behind each other. On a GPU they are read and written in sequence with
 * the work on the run's stream, which a call waits for only where bytes pass through the host's
 * memory; a workspace is not used. What launches need of their plan is made in the first call and
 * kept with the handle. With dropout the forward first compares the seeds of all ranks. A transfer
 * that fails is a verbatim_device_error that names rank and step; the other ranks then fail as
 * their transport gives up. */
verbatim_status verbatim_dist_forward(const verbatim_dist* dist,
                                      const verbatim_forward_tensors* tensors,
                                      const verbatim_run_options* run);
verbatim_status verbatim_dist_backward(const verbatim_dist* dist,
                                       const verbatim_backward_tensors* tensors,
                                       const verbatim_run_options* run);

/* From here on calls note when they do what, until they are asked. Waits for the run's stream. */
verbatim_status verbatim_dist_record(const verbatim_dist* dist, const verbatim_run_options* run);
/* JSON: what the handle's calls have done since, a list in its sequence: the pass; the kind:
 * "pack", "send", "expect", "receive", "unpack", "copy", "settle", "launch" or "add"; its bytes;
 * called_ms and issued_ms, when the host began and ended to ask for it; begin_ms and end_ms, when
 * the work, on a GPU that of the stream, came to it and was done with it. Milliseconds from
 * verbatim_dist_record() on. Waits for the work. Of a handle that was not asked the list is empty.
 */
verbatim_status verbatim_dist_recorded(const verbatim_dist* dist, const char** json);

/* JSON: world, rank, strategy, shard, ulysses_size, ring_window as chosen; "ranks", for each what
 * it holds (q and kv, lists of [batch entry, first position, end]), bytes that it sends in each
 * pass (predicted_bytes, comparisons apart) and of its memory (memory_bytes, at most peak_bytes);
 * for each pass what verbatim_attention_describe() has. */
verbatim_status verbatim_dist_describe(const verbatim_dist* dist, const char** json);

/* The whole JSON of the mask that `mask` describes for these sizes (masks::make). */
verbatim_status verbatim_mask_json(const char* mask, int64_t q_len, int64_t kv_len,
                                   int64_t kv_heads, const char** json);
/* The same as a Python function in FlexAttention's vocabulary. */
verbatim_status verbatim_mask_mod(const char* mask, int64_t q_len, int64_t kv_len, int64_t kv_heads,
                                  const char** python);
/* The same as bytes of 0 and 1: (batch, kv_heads, q_len, kv_len), at most 2^28 of them a head. */
verbatim_status verbatim_mask_to_dense(const char* mask, int64_t batch, int64_t kv_heads,
                                       int64_t q_len, int64_t kv_len, uint8_t* dense);
/* Its visible positions summed over `batch` entries and `q_heads` query heads: FLOPs of a forward
 * are 2 * area * (head_dim + head_dim_v), of a backward 2.5 times that. */
verbatim_status verbatim_mask_area(const char* mask, int64_t batch, int64_t q_heads,
                                   int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t* area);
/* JSON of the mask whose visible positions are the bytes of `dense` that are not 0. */
verbatim_status verbatim_mask_from_dense(const uint8_t* dense, int64_t batch, int64_t kv_heads,
                                         int64_t q_len, int64_t kv_len, const char** json);

/* The same of the keys that each row sees, [begins[i], ends[i]) apart and in ascending order:
 * `row_begin`, [batch, kv_heads, q_len] and one more, offsets into `begins` and `ends`, of `count`
 * entries. */
verbatim_status verbatim_mask_from_rows(const int64_t* row_begin, const int32_t* begins,
                                        const int32_t* ends, int64_t count, int64_t batch,
                                        int64_t kv_heads, int64_t q_len, int64_t kv_len,
                                        const char** json);

/* Selected blocks as arrays: BlockLists of verbatim/mask.h. */
typedef struct verbatim_blocks {
  int64_t q_len, kv_len;    /* blocks of block_q x block_k positions, the last ones shorter; */
  int64_t block_q, block_k; /* not looked at where there are edges */
  const int64_t* q_edges;   /* [q_blocks + 1], from 0 to q_len; NULL: equal blocks on both axes */
  const int64_t* k_edges;   /* [k_blocks + 1], from 0 to kv_len */
  int64_t q_blocks;         /* of the edges, else not looked at */
  int64_t k_blocks;
  int64_t batch, kv_heads;  /* lists; 1: one for all */
  const int64_t* row_begin; /* [batch, kv_heads, q_blocks + 1], offsets into columns */
  int64_t row_begins;       /* their number */
  const int32_t* columns;   /* key blocks */
  int64_t column_count;
} verbatim_blocks;

/* JSON that names the mask of these blocks wherever JSON of a mask goes in this process. The
 * library copies the arrays, keeps the mask until it is released as often as it was made, and the
 * 64 last used of those that were. */
verbatim_status verbatim_mask_from_blocks(const verbatim_blocks* blocks, const char** json);
verbatim_status verbatim_mask_release(const char* mask);

/* Attention kernels as text (verbatim/tl.h, docs/tl.md). `options` is JSON, an object with any of
 * the members target (default: the program's own), level ("invariant") and sketch (false). */

/* JSON: the faults of a program in the order of its text. Each has code, line, column, begin and
 * end (bytes), reason, right, shown (what people read, with the line and a caret), and where an
 * edit makes it right, edit: begin, end, text. */
verbatim_status verbatim_tl_check(const char* program, const char* options, const char** json);
/* The program edited until the check finds nothing more that it can edit. */
verbatim_status verbatim_tl_fix(const char* program, const char* options, const char** fixed);
/* The TL code of a sketch. `spec` is JSON with the members "problem" (as problem_from_json),
 * "target" and, if one likes, tile ([q, kv], 0: the contract's) and level. */
verbatim_status verbatim_tl_reason(const char* sketch, const char* spec, const char** program);
/* The program in its one layout. */
verbatim_status verbatim_tl_format(const char* program, const char** formatted);

/* The program in CUDA C++. Of `options` sketch is not one. JSON: name (of its file,
 * "forward_a100"), source, arithmetic of the plans that it runs, and arch, as nvcc names the
 * target's ("80"). */
verbatim_status verbatim_tl_emit(const char* program, const char* options, const char** json);
/* Writes that to `folder`, which is made where there is none, and compiles it there with the nvcc
 * of the PATH. `library` is the path of what it makes, for the option kernels. `options` may also
 * have archs, a list of what nvcc makes, "sm_80" (machine code) or "compute_80" (PTX); none: both
 * of the target. verbatim_unsupported, before anything is written, without nvcc or the headers,
 * which lie where this library was built; with nvcc's words when it refuses. */
verbatim_status verbatim_tl_build(const char* program, const char* folder, const char* options,
                                  const char** library);

/* A forward over blocks of keys that lists name (verbatim/selected.h, docs/tl-nsa.md). A handle is
 * immutable: threads may share one. */
typedef struct verbatim_selected verbatim_selected;

/* `spec` is JSON with the members "problem", "mask" (both as verbatim_attention_create), "kernel"
 * (TL code, or the path of a library) and, if one likes, level ("invariant") and device ("cpu"). */
verbatim_status verbatim_selected_create(const char* spec, verbatim_selected** selected);
void verbatim_selected_destroy(verbatim_selected* selected);

/* Lists of blocks, dense, on the host or the device: [batch, kv_heads, lists, room], -1 behind the
 * last entry. */
typedef struct verbatim_selected_blocks {
  const int32_t* data;
  int64_t shape[4];
} verbatim_selected_blocks;

/* Lists on the host are checked before anything runs; those on the device in the stream, which the
 * next call reports (verbatim/selected.h). Of `run` the workspace is not used. */
verbatim_status verbatim_selected_forward(const verbatim_selected* selected,
                                          const verbatim_forward_tensors* tensors,
                                          const verbatim_selected_blocks* blocks,
                                          const verbatim_run_options* run);
/* JSON: index, arithmetic, and q_edges and kv_edges: where the queries of each list, and each
 * block, begin, then their end. */
verbatim_status verbatim_selected_describe(const verbatim_selected* selected, const char** json);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
