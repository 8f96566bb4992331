// The `cuda_sm90a` kernel: FlashAttention-3's pipeline (Shah et al., 2024) on wgmma and TMA, over
// strided views.
//
// A block stays on its SM and does a list of tiles. One warp loads, ahead of the others, Q of the
// next tile and a few stages of K and V; the consumer warpgroups (64 query rows each) multiply.
// Within one of them, Q K^T of the next key tile and P V of this one are in flight while the
// exponentials are computed. The first scores of the next tile are issued behind the last P V, so
// that rows are written while they are computed.
//
//   d = 64, 2048 keys, 192 x 128 tiles: 16 key tiles; step i issues S(i + 1) and P(i) V(i), waits
//   for S(i + 1), turns it into P(i + 1), waits for O, rescales it where a maximum has grown much.
//   Step 15 issues P(15) V(15) and the next tile's S(0), waits for O, writes it, waits for S(0).
//
// ptxas 13.0 serialises all products (C7512, C7515, with spills) where the loop over key tiles
// counts down, or where scores, not weights, go from one round of it to the next.
//
// PTX ISA 8.x: cp.async.bulk.tensor (9.7.9.27), mbarrier (9.7.13.15), setmaxnreg (9.7.19.5),
// fence.proxy.tensormap (9.7.13.7).
#pragma once
#include <cstdint>

#include "kernels/cuda/block_memory.cuh"
#include "kernels/cuda/block_tiles.cuh"
#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/softmax_rows.cuh"

namespace longnet {

template <class Shape>
__device__ void init_barriers(const BlockMemory<Shape>& memory) {
  for (int buffer = 0; buffer < Shape::kQBuffers; ++buffer) {
    memory.init(Shape::q_full(buffer), 1);
    memory.init(Shape::q_empty(buffer), Shape::kArrivals);
  }
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    memory.init(Shape::k_full(stage), 1);
    memory.init(Shape::v_full(stage), 1);
    memory.init(Shape::k_empty(stage), Shape::kArrivals);
    memory.init(Shape::v_empty(stage), Shape::kArrivals);
  }
  memory.fence_barrier_init();
}

// The thread that loads, by TMA.
template <class Shape>
class Producer : public BlockMemory<Shape> {
 public:
  __device__ __forceinline__ Producer(uint32_t shared, const void* maps)
      : BlockMemory<Shape>{shared}, maps_(static_cast<const char*>(maps)) {}

  // Loads in the order in which consumers use them: Q K0 K1 V0 K2 V1 ..., across tiles. A place for
  // values is free later than one for keys, which must not wait for it.
  __device__ __forceinline__ void run(const GroupInputs& in) {
    BlockTiles<Shape> tiles(in);
    PipelineState<Shape::kQBuffers> q;
    PipelineState<Shape::kStages> kv;
    int last = -1, last_key = 0;  // run and key of the key tile before
    const auto load_values = [&](const PipelineState<Shape::kStages> at) {
      this->wait(Shape::v_empty(at.stage), at.parity ^ 1);
      load(in.runs[last].v, last_key, Shape::kSlabBytes, Shape::v_offset(at.stage),
           Shape::v_full(at.stage));
    };
    while (tiles.next(in)) {
      if (tiles.begins()) {  // a fresh barrier's phase before the first counts as complete
        const GroupTile& tile = tiles.tile(in);
        this->wait(Shape::q_empty(q.stage), q.parity ^ 1);
        load(in.tasks[tile.task].q, tile.row, Shape::kQSlabBytes, Shape::q_offset(q.stage),
             Shape::q_full(q.stage));
        q.advance();
      }
      const GroupRun& run = tiles.keys().run(in);
      this->wait(Shape::k_empty(kv.stage), kv.parity ^ 1);
      load(run.k, tiles.keys().key(), Shape::kSlabBytes, Shape::k_offset(kv.stage),
           Shape::k_full(kv.stage));
      if (last >= 0) load_values(kv.before());
      last = tiles.keys().run_index();
      last_key = tiles.keys().key();
      kv.advance();
    }
    if (last >= 0) load_values(kv.before());
  }

 private:
  // Rows at a view's coordinates from `row` on, all slabs of them, to byte `into` of shared memory.
  __device__ __forceinline__ void load(const ViewPlace& from, int row, int slab_bytes, int into,
                                       int full) const {
    this->expect(full, Shape::kSlabs * slab_bytes);
#pragma unroll
    for (int slab = 0; slab < Shape::kSlabs; ++slab)
      this->copy_box(maps_, from, slab * Shape::kSlabDim, row, into + slab * slab_bytes, full);
  }

  const char* maps_;
};

// Query rows of one warp of a consumer warpgroup, and the products that it takes part in.
template <class Shape>
class GroupRows : public SoftmaxRows<1, Shape::kDim, Shape::kKeys> {
  using Rows = SoftmaxRows<1, Shape::kDim, Shape::kKeys>;

 public:
  static constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;

  // The rows of warpgroup `group`; tiles begin at byte `shared` of shared memory.
  __device__ __forceinline__ GroupRows(uint32_t shared, int group)
      : q_(descriptor_address(shared + uint32_t(group * 64 * Shape::kRowBytes), 0)),
        k_(descriptor_address(shared + uint32_t(Shape::k_offset(0)), 0)),
        v_(descriptor_address(shared + uint32_t(Shape::v_offset(0)), Shape::kSlabBytes)) {}
  // S = Q K^T, in flight until a wait.
  __device__ __forceinline__ void issue_scores(int buffer, int stage) {
    const uint32_t query = q_ + uint32_t(buffer) * uint32_t(Shape::kQBytes / 16);
    const uint32_t key = k_ + stage_places(stage);
    wgmma_fence(s_[0]);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int dims = k % 4 * 32;  // bytes within a row
      wgmma_multiply(
          s_[0], matrix_descriptor(query + uint32_t(k / 4 * Shape::kQSlabBytes + dims) / 16),
          matrix_descriptor(key + uint32_t(k / 4 * Shape::kSlabBytes + dims) / 16), k > 0);
    }
    wgmma_commit();
  }
  // O += P V, in flight until wait_for_all(); P may not change before.
  __device__ __forceinline__ void issue_values(int stage) {
    const uint32_t value = v_ + stage_places(stage);
    wgmma_fence(this->o[0]);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      wgmma_multiply_add(this->o[0], p_[k][0],
                         matrix_descriptor(value + uint32_t(k * Shape::kRowBytes)));
    wgmma_commit();
  }
  // Until the product before the one issued last is complete: S.
  __device__ __forceinline__ void wait_for_scores() {
    wgmma_wait<1>();
    keep_in_place(s_[0]);
  }
  __device__ __forceinline__ void wait_for_values() {
    wgmma_wait<1>();
    keep_in_place(this->o[0]);
  }
  __device__ __forceinline__ void wait_for_all() {
    wgmma_wait<0>();
    keep_in_place(s_[0]);
    keep_in_place(this->o[0]);
  }
  // S of a key tile becomes exponentials; O is still to be rescaled.
  __device__ __forceinline__ void exponentials(const GroupInputs& in, const KeyTiles<kKeys>& keys) {
    if (__any_sync(0xFFFFFFFFu, keys.limit(0) < kKeys))
      this->mask_columns(s_, 0, kKeys, [&](int, int h) { return keys.limit(h); });
    this->softmax(s_, in.scale_log2, shrink_);
  }
  // Keeps later instructions behind the sums: a branch that is never taken (sums are not negative),
  // uniform over the warp. ptxas 13.0 moves a wgmma.wait_group up across anything else, above the
  // exponentials that are meant to hide it. Only where products are in flight: behind the trap it
  // keeps the registers of their operands.
  __device__ __forceinline__ void stay_behind_exponentials() const {
    if (__any_sync(0xFFFFFFFFu, fminf(this->sum_[0][0], this->sum_[0][1]) < 0.0f))
      asm volatile("trap;" ::: "memory");
  }
  __device__ __forceinline__ void rescale_output() { this->rescale(shrink_); }
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) pack_operand(p_[k], s_, k);
  }

 private:
  static __device__ __forceinline__ uint32_t stage_places(int stage) {
    return uint32_t(stage) * uint32_t(2 * Shape::kTileBytes / 16);
  }

  uint32_t q_, k_, v_;  // lower halves of matrix descriptors
  typename Rows::Scores s_;
  typename Rows::Factors shrink_;
  Fragment p_[kKeys / 16][1];
};

// Named barriers 1 ... kGroups: two warpgroups, one that waits for its turn and one that passes it.
__device__ __forceinline__ void take_turn(int index) {
  asm volatile("barrier.sync %0, 256;" ::"r"(1 + index) : "memory");
}
template <class Shape>
__device__ __forceinline__ void pass_turn(int index) {
  const int next = index + 1 == Shape::kGroups ? 0 : index + 1;
  asm volatile("barrier.arrive %0, 256;" ::"r"(1 + next) : "memory");
}

// Threads of the loading warpgroup beside the warp that loads.
inline constexpr int kIdleLoadingThreads = 96;

// Clears the tiles that see no key, over all blocks, by these threads of each.
template <class Shape>
__device__ __forceinline__ void clear_rows(const GroupInputs& in, int thread) {
  if (in.merge) return;
  for (int i = int(blockIdx.x); i < in.num_keyless; i += int(gridDim.x)) {
    const GroupTile& tile = in.keyless[i];
    const TaskRows rows = in.tasks[tile.task];
    for (int row = tile.row + thread; row < rows.rows && row < tile.row + Shape::kRows;
         row += kIdleLoadingThreads) {
      rows.lse[row * rows.lse_stride] = -INFINITY;
      for (int k = 0; k < (in.short_o ? in.head_dim / 2 : in.head_dim); ++k)
        rows.o[row * rows.o_stride + k] = 0.0f;
    }
  }
}

// Consumer warpgroup `index`: the tiles of a block, one key tile after the other. P of a key tile
// is in registers when the next one's scores are issued.
template <class Shape>
class Consumer : public BlockMemory<Shape> {
  using State = PipelineState<Shape::kStages>;

 public:
  __device__ __forceinline__ Consumer(const BlockMemory<Shape>& memory, const GroupInputs& in,
                                      int index)
      : BlockMemory<Shape>(memory), index_(index), rows_(memory.shared, index), tiles_(in) {}

  __device__ __forceinline__ void run(const GroupInputs& in) {
    if (!tiles_.next(in)) return;
    rows_.begin(first_row_of_warp());
    take_turn(index_);
    issue_first_scores();
    pass_turn<Shape>(index_);
    rows_.wait_for_all();
    this->arrive(Shape::k_empty(kv_.stage));
    rows_.exponentials(in, tiles_.keys());  // O is zero: nothing to rescale
    rows_.pack_weights();
    while (tiles_.next(in)) {
      const State last = kv_;
      kv_.advance();
      if (tiles_.begins())
        change_tile(in, last);
      else
        change_keys(in, last);
      rows_.pack_weights();
    }
    issue_values(kv_);
    rows_.wait_for_all();
    finish(in, tiles_.tile(in));
  }

 private:
  // O += P V of the last keys is in flight while these keys' scores become exponentials.
  __device__ __forceinline__ void change_keys(const GroupInputs& in, const State& last) {
    this->wait(Shape::k_full(kv_.stage), kv_.parity);
    take_turn(index_);
    rows_.issue_scores(q_.stage, kv_.stage);
    issue_values(last);
    pass_turn<Shape>(index_);
    rows_.wait_for_scores();
    this->arrive(Shape::k_empty(kv_.stage));
    rows_.exponentials(in, tiles_.keys());
    rows_.stay_behind_exponentials();
    rows_.wait_for_all();
    this->arrive(Shape::v_empty(last.stage));
    rows_.rescale_output();
  }
  // The first scores of a tile are in flight while the last one's rows are written.
  __device__ __forceinline__ void change_tile(const GroupInputs& in, const State& last) {
    this->arrive(Shape::q_empty(q_.stage));
    q_.advance();
    take_turn(index_);
    issue_values(last);
    issue_first_scores();
    pass_turn<Shape>(index_);
    rows_.wait_for_values();
    this->arrive(Shape::v_empty(last.stage));
    finish(in, tiles_.last_tile(in));
    rows_.begin(first_row_of_warp());
    rows_.wait_for_all();
    this->arrive(Shape::k_empty(kv_.stage));
    rows_.exponentials(in, tiles_.keys());  // O is zero: nothing to rescale
  }
  __device__ __forceinline__ void issue_first_scores() {
    this->wait(Shape::q_full(q_.stage), q_.parity);
    this->wait(Shape::k_full(kv_.stage), kv_.parity);
    rows_.issue_scores(q_.stage, kv_.stage);
  }
  __device__ __forceinline__ void issue_values(const State& at) {
    this->wait(Shape::v_full(at.stage), at.parity);
    rows_.issue_values(at.stage);
  }
  __device__ __forceinline__ void finish(const GroupInputs& in, const GroupTile& tile) {
    rows_.finish(in.tasks[tile.task], in, tile.row);
  }

  int index_;
  GroupRows<Shape> rows_;
  BlockTiles<Shape> tiles_;
  State kv_;  // the keys', and one step later the values'
  PipelineState<Shape::kQBuffers> q_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_group_kernel(const __grid_constant__ GroupInputs in) {
  extern __shared__ unsigned char memory[];
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(memory));
  const BlockMemory<Shape> block{(raw + Shape::kAlignment - 1) / Shape::kAlignment *
                                 Shape::kAlignment};
  if (threadIdx.x == 0) init_barriers(block);
  for (int view = int(threadIdx.x); view < in.num_views; view += Shape::kThreads)
    block.acquire_map(static_cast<const char*>(in.maps), view);
  __syncthreads();
  const int group = __shfl_sync(0xFFFFFFFFu, int(threadIdx.x) / 128, 0);  // uniform per warp
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kProducerRegisters));
    if (threadIdx.x == 0) Producer<Shape>(block.shared, in.maps).run(in);
    if (threadIdx.x >= 32) clear_rows<Shape>(in, int(threadIdx.x) - 32);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    if (group == Shape::kGroups) pass_turn<Shape>(group - 1);  // to the first
    Consumer<Shape>(block, in, group - 1).run(in);
  }
}

}  // namespace longnet
