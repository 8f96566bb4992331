// The `cuda_sm90a` kernel: FlashAttention-3's pipeline (Shah et al., 2024) on wgmma and TMA, over
// strided views.
//
// A block stays on its SM and does a list of tiles. One warp loads, ahead of the others, Q of the
// next tile and a few stages of K and V; the consumer warpgroups (64 query rows each) multiply.
// Within one of them, Q K^T of the next key tile and P V of this one are in flight while the
// exponentials are computed.
//
//   d = 64, 2048 keys, 192 x 128 tiles: 16 key tiles; step i issues S(i + 1) and P(i) V(i), waits
//   for S(i + 1), turns it into P(i + 1), waits for O, rescales it where a maximum has grown much.
//
// ptxas 13.0 serialises all products (C7512, with spills) as soon as the loop over key tiles counts
// down: its condition has to be KeyTiles::next.
//
// PTX ISA 8.x: cp.async.bulk.tensor (9.7.9.27), mbarrier (9.7.13.15), setmaxnreg (9.7.19.5),
// fence.proxy.tensormap (9.7.13.7).
#pragma once
#include <cstdint>

#include "kernels/cuda/block_memory.cuh"
#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/softmax_rows.cuh"

namespace longnet {

// The key tiles that rows [first, last] of a task see: producer and consumers walk the same ones.
// A tile holds keys of one run. Small on purpose: consumers have few registers to spare.
template <int kKeys>
class KeyTiles {
 public:
  __device__ __forceinline__ KeyTiles(const GroupTask& task, int first, int last)
      : run_(task.first_run - 1), left_(task.num_runs), first_(first), last_(last) {}
  __device__ __forceinline__ bool next(const GroupInputs& in) {
    key_ += kKeys;
    while (key_ >= visible_) {
      if (left_-- == 0) return false;
      ++run_;
      key_ = 0;
      visible_ = limit(in, last_);
      seen_by_all_ = limit(in, first_);
    }
    return true;
  }
  __device__ __forceinline__ const GroupRun& run(const GroupInputs& in) const {
    return in.runs[run_];
  }
  __device__ __forceinline__ int key() const { return key_; }  // the tile's first key in the run
  __device__ __forceinline__ bool all_visible() const { return key_ + kKeys <= seen_by_all_; }
  // Columns of the tile that `row` of the task sees; may be negative or beyond kKeys.
  __device__ __forceinline__ int limit(const GroupInputs& in, int row) const {
    const KeyLimit& keys = run(in).limit;
    return (in.causal ? keys.visible(row) : keys.rows) - key_;
  }

 private:
  int run_, left_, first_, last_;
  int key_ = 0, visible_ = 0, seen_by_all_ = 0;
};

__device__ __forceinline__ int last_row(const GroupTask& task, int first, int rows) {
  return (first + rows < task.rows ? first + rows : task.rows) - 1;
}

template <class Shape>
__device__ void init_barriers(const BlockMemory<Shape>& memory) {
  memory.init(Shape::kQFull, 1);
  memory.init(Shape::kQEmpty, Shape::kArrivals);
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    memory.init(Shape::k_full(stage), 1);
    memory.init(Shape::v_full(stage), 1);
    memory.init(Shape::k_empty(stage), Shape::kArrivals);
    memory.init(Shape::v_empty(stage), Shape::kArrivals);
  }
  memory.show_barriers();
}

enum class Operand { kQuery, kKey, kValue };

// The thread that loads, by TMA.
template <class Shape>
class Producer : public BlockMemory<Shape> {
 public:
  __device__ __forceinline__ Producer(uint32_t shared, const void* maps)
      : BlockMemory<Shape>{shared}, maps_(static_cast<const char*>(maps)) {}

  __device__ __forceinline__ void run(const GroupInputs& in) {
    const int block = int(blockIdx.x);
    RingPlace<Shape::kStages> place;
    int q_parity = 0;
    for (int i = in.block_begin[block]; i < in.block_begin[block + 1]; ++i) {
      const GroupTile tile = in.tiles[i];
      const GroupTask& task = in.tasks[tile.task];
      KeyTiles<Shape::kKeys> keys(task, tile.row, last_row(task, tile.row, Shape::kRows));
      // Loads in the order in which consumers use them: K0 Q K1 V0 K2 V1 ... A place for values is
      // free later than one for keys, which must not wait for it.
      bool first = true;
      RingPlace<Shape::kStages> last{};
      ViewPlace last_v{};
      int last_key = 0;
      const auto load_values = [&] {
        this->wait(Shape::v_empty(last.stage), last.parity ^ 1);
        load(Operand::kValue, Shape::v_full(last.stage), last_v, last_key,
             Shape::v_offset(last.stage));
      };
      while (keys.next(in)) {
        const GroupRun& run = keys.run(in);
        this->wait(Shape::k_empty(place.stage), place.parity ^ 1);
        load(Operand::kKey, Shape::k_full(place.stage), run.k, keys.key(),
             Shape::k_offset(place.stage));
        if (first) {  // a fresh barrier's phase before the first counts as complete
          this->wait(Shape::kQEmpty, q_parity ^ 1);
          load(Operand::kQuery, Shape::kQFull, task.q, tile.row, 0);
          q_parity ^= 1;
          first = false;
        } else {
          load_values();
        }
        last = place;
        last_v = run.v;
        last_key = keys.key();
        place.advance();
      }
      if (!first) load_values();
    }
  }

 private:
  // Rows of a place from `row` on, all slabs of them, to byte `into` of shared memory.
  __device__ __forceinline__ void load(Operand operand, int full, const ViewPlace& from, int row,
                                       int into) {
    const int slab_bytes = operand == Operand::kQuery ? Shape::kQSlabBytes : Shape::kSlabBytes;
    this->expect(full, Shape::kSlabs * slab_bytes);
#pragma unroll
    for (int slab = 0; slab < Shape::kSlabs; ++slab)
      copy_box(operand, from, slab * Shape::kSlabDim, row, into + slab * slab_bytes, full);
  }
  __device__ __forceinline__ void copy_box(Operand operand, const ViewPlace& from, int dim, int row,
                                           int into, int barrier) {
    int& known = operand == Operand::kQuery ? known_q_
                 : operand == Operand::kKey ? known_k_
                                            : known_v_;
    if (known != from.view) this->acquire_map(maps_, known = from.view);
    BlockMemory<Shape>::copy_box(maps_, from, dim, row, into, barrier);
  }

  const char* maps_;
  int known_q_ = -1, known_k_ = -1, known_v_ = -1;  // views whose maps were fenced
};

// Query rows of one warp of a consumer warpgroup, and the products that it takes part in.
template <class Shape, class Element>
class GroupRows : public SoftmaxRows<1, Shape::kDim, Shape::kKeys, Element> {
  using Rows = SoftmaxRows<1, Shape::kDim, Shape::kKeys, Element>;

 public:
  static constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;

  // Of warpgroup `group`; tiles lie from byte `shared` on.
  __device__ __forceinline__ GroupRows(uint32_t shared, int group)
      : q_(matrix_place(shared + uint32_t(group * 64 * Shape::kRowBytes), 0)),
        k_(matrix_place(shared + uint32_t(Shape::k_offset(0)), 0)),
        v_(matrix_place(shared + uint32_t(Shape::v_offset(0)), Shape::kSlabBytes)) {}
  // S = Q K^T, in flight until wait().
  __device__ __forceinline__ void issue_scores(int stage) {
    const uint32_t key = k_ + stage_places(stage);
    wgmma_fence(s_[0]);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int dims = k % 4 * 32;  // bytes within a row
      wgmma_multiply<Element>(
          s_[0], matrix_descriptor(q_ + uint32_t(k / 4 * Shape::kQSlabBytes + dims) / 16),
          matrix_descriptor(key + uint32_t(k / 4 * Shape::kSlabBytes + dims) / 16), k > 0);
    }
    wgmma_commit();
  }
  // O += P V, in flight until wait(); P may not change before.
  __device__ __forceinline__ void issue_values(int stage) {
    const uint32_t value = v_ + stage_places(stage);
    wgmma_fence(this->o[0]);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      wgmma_multiply_add<Element>(this->o[0], p_[k][0],
                                  matrix_descriptor(value + uint32_t(k * Shape::kRowBytes)));
    wgmma_commit();
  }
  // Blocks until at most kPending of the issued products are in flight.
  template <int kPending>
  __device__ __forceinline__ void wait() {
    wgmma_wait<kPending>();
    keep_in_place(s_[0]);
    if constexpr (kPending == 0) keep_in_place(this->o[0]);
  }
  // S of a key tile becomes exponentials; O is still to be rescaled.
  __device__ __forceinline__ void exponentials(const GroupInputs& in, int tile_row,
                                               const KeyTiles<kKeys>& keys) {
    if (!keys.all_visible())
      this->mask_columns(s_, 0, kKeys, [&](int row) { return keys.limit(in, tile_row + row); });
    this->softmax(s_, in.scale_log2, shrink_);
    // Keeps later instructions behind the sums: a branch that is never taken (sums are not
    // negative), uniform over the warp. ptxas 13.0 moves a wgmma.wait_group up across anything
    // else, above the exponentials that are meant to hide it.
    if (__any_sync(0xFFFFFFFFu, fminf(this->sum_[0][0], this->sum_[0][1]) < 0.0f))
      asm volatile("trap;" ::: "memory");
  }
  __device__ __forceinline__ void rescale_output() { this->rescale(shrink_); }
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) pack_operand<Element>(p_[k], s_, k);
  }

 private:
  static __device__ __forceinline__ uint32_t stage_places(int stage) {
    return uint32_t(stage) * uint32_t(2 * Shape::kTileBytes / 16);
  }

  uint32_t q_, k_, v_;  // of matrix descriptors
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

// Consumer warpgroup `index`, one key tile of a task after the other.
template <class Shape, class Element>
__device__ __forceinline__ void consume(const BlockMemory<Shape> memory, const GroupInputs& in,
                                        int index) {
  const int block = int(blockIdx.x);
  GroupRows<Shape, Element> rows(memory.shared, index);
  RingPlace<Shape::kStages> place;
  int q_parity = 0;
  for (int i = in.block_begin[block]; i < in.block_begin[block + 1]; ++i) {
    const GroupTile tile = in.tiles[i];
    const GroupTask& task = in.tasks[tile.task];
    KeyTiles<Shape::kKeys> keys(task, tile.row, last_row(task, tile.row, Shape::kRows));
    rows.begin(index * 64 + int(threadIdx.x % 128 / 32) * 16);
    if (keys.next(in)) {
      memory.wait(Shape::kQFull, q_parity);
      q_parity ^= 1;
      memory.wait(Shape::k_full(place.stage), place.parity);
      rows.issue_scores(place.stage);
      rows.template wait<0>();
      memory.arrive(Shape::k_empty(place.stage));
      rows.exponentials(in, tile.row, keys);  // O is zero: nothing to rescale
      rows.pack_weights();
      while (keys.next(in)) {
        const RingPlace<Shape::kStages> now = place;
        place.advance();
        memory.wait(Shape::k_full(place.stage), place.parity);
        take_turn(index);
        rows.issue_scores(place.stage);
        memory.wait(Shape::v_full(now.stage), now.parity);
        rows.issue_values(now.stage);
        pass_turn<Shape>(index);
        rows.template wait<1>();
        memory.arrive(Shape::k_empty(place.stage));
        rows.exponentials(in, tile.row, keys);  // while O += P V is in flight
        rows.template wait<0>();
        memory.arrive(Shape::v_empty(now.stage));
        rows.rescale_output();
        rows.pack_weights();
      }
      memory.arrive(Shape::kQEmpty);
      memory.wait(Shape::v_full(place.stage), place.parity);
      rows.issue_values(place.stage);
      rows.template wait<0>();
      memory.arrive(Shape::v_empty(place.stage));
      place.advance();
    }
    rows.finish(task, in, tile.row);
  }
}

template <class Shape, class Element>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_group_kernel(const __grid_constant__ GroupInputs in) {
  extern __shared__ unsigned char memory[];
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(memory));
  const BlockMemory<Shape> block{(raw + Shape::kAlignment - 1) / Shape::kAlignment *
                                 Shape::kAlignment};
  if (threadIdx.x == 0) init_barriers(block);
  __syncthreads();
  const int group = __shfl_sync(0xFFFFFFFFu, int(threadIdx.x) / 128, 0);  // uniform per warp
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kProducerRegisters));
    if (threadIdx.x == 0) Producer<Shape>(block.shared, in.maps).run(in);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    if (group == Shape::kGroups) pass_turn<Shape>(group - 1);  // to the first
    consume<Shape, Element>(block, in, group - 1);
  }
}

}  // namespace longnet
