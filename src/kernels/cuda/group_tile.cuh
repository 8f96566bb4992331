// The `cuda_sm90a` kernel: FlashAttention-3's pipeline (Shah et al., 2024) on wgmma and TMA, over
// strided views.
//
// A block stays on its SM and does a list of tiles. Three warps load, ahead of the others, a few
// stages of K and of V, and each warpgroup's rows of Q; the consumer warpgroups (64 query rows
// each) multiply. Each computes the key tiles that its own rows see, and lets the others pass.
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

#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/softmax_rows.cuh"

namespace longnet {

// A place in the ring of stages, and the parity of the ring's round.
template <int kStages>
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The key tiles that rows of a block's tile see: those of one of its warpgroups, or of all. A tile
// holds keys of one run. Small on purpose, and loads again what is seldom needed: consumers have
// few registers to spare.
template <class Shape>
class KeyTiles {
 public:
  static constexpr int kKeys = Shape::kKeys, kAll = -1;

  // Of warpgroup `group`, or kAll, of tile number `tile`; rows before `first` are not asked for.
  __device__ __forceinline__ KeyTiles(const GroupInputs& in, int tile, int group, int first)
      : tile_(tile), group_(group), first_(first) {
    const GroupTile at = in.tiles[tile];
    run_ = in.tasks[at.task].first_run - 1;
  }
  __device__ __forceinline__ bool next(const GroupInputs& in) {
    key_ += kKeys;
    return key_ < visible_ || enter_run(in);
  }
  // Whether this is the last tile that next() gives.
  __device__ __forceinline__ bool is_last() const {
    return is_last_run_ && key_ + kKeys >= visible_;
  }
  // Behind the last one: tiles that only other warpgroups see.
  __device__ __forceinline__ void find_hidden(const GroupInputs& in) {
    const GroupTile at = in.tiles[tile_];
    const GroupTask& task = in.tasks[at.task];
    if (task.num_runs == 1) visible_ = limit(in, last_row(at, task, Shape::kRows)) + key_;
  }
  __device__ __forceinline__ bool has_hidden() const { return key_ < visible_; }
  __device__ __forceinline__ void skip_hidden() { key_ += kKeys; }
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
  // The last of a tile's first `rows` rows that the task has.
  static __device__ __forceinline__ int last_row(const GroupTile& at, const GroupTask& task,
                                                 int rows) {
    return min(at.row + rows, task.rows) - 1;
  }
  __device__ __forceinline__ bool enter_run(const GroupInputs& in) {
    const GroupTile at = in.tiles[tile_];
    const GroupTask& task = in.tasks[at.task];
    // With several runs, tiles that a warpgroup does not see may lie between others: all do all.
    const bool own = group_ != kAll && task.num_runs == 1;
    const int last = last_row(at, task, own ? (group_ + 1) * kGroupRows : Shape::kRows);
    do {
      if (run_ + 1 == task.first_run + task.num_runs) return false;
      ++run_;
      key_ = 0;
      visible_ = limit(in, last);
    } while (visible_ <= 0);
    if (own && at.row + group_ * kGroupRows >= task.rows) visible_ = 0;  // no rows
    seen_by_all_ = limit(in, first_);
    is_last_run_ = run_ + 1 == task.first_run + task.num_runs;
    return visible_ > 0;
  }

  int tile_, group_, first_, run_;
  int key_ = 0, visible_ = 0, seen_by_all_ = 0;
  bool is_last_run_ = false;
};

// Shared memory of a block from byte `shared` on: tiles, and mbarriers behind them.
template <class Shape>
struct BlockMemory {
  uint32_t shared;

  __device__ __forceinline__ uint32_t at(int barrier) const {
    return shared + uint32_t(Shape::kBarrierOffset + 8 * barrier);
  }
  __device__ void init(int barrier, int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(barrier)), "r"(arrivals)
                 : "memory");
  }
  __device__ void init_all() const {
    for (int group = 0; group < Shape::kGroups; ++group) {
      init(Shape::q_full(group), 1);
      init(Shape::q_empty(group), 4);  // a warp each
    }
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      init(Shape::k_full(stage), 1);
      init(Shape::v_full(stage), 1);
      init(Shape::k_empty(stage), 4 * Shape::kGroups);
      init(Shape::v_empty(stage), 4 * Shape::kGroups);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ __forceinline__ void wait(int barrier, int parity) const {
    uint32_t done;
    do {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          " selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(at(barrier)), "r"(parity)
          : "memory");
    } while (done == 0);
  }
  // Arrives at a barrier by one lane of each warp.
  __device__ __forceinline__ void arrive(int barrier) const {
    if (threadIdx.x % 32 == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory");
  }
  __device__ __forceinline__ void expect(int barrier, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)),
                 "r"(bytes)
                 : "memory");
  }
};

// A thread that loads by TMA: one the keys, one the values, one the queries.
template <class Shape>
class Producer : public BlockMemory<Shape> {
 public:
  __device__ __forceinline__ Producer(uint32_t shared, const void* maps)
      : BlockMemory<Shape>{shared}, maps_(static_cast<const char*>(maps)) {}

  // The blocks' key tiles, into a ring of stages.
  template <bool kValues>
  __device__ __forceinline__ void load_keys(const GroupInputs& in) {
    using Tiles = KeyTiles<Shape>;
    RingPlace<Shape::kStages> place;
    for (int i = in.block_begin[blockIdx.x]; i < in.block_begin[blockIdx.x + 1]; ++i) {
      Tiles keys(in, i, Tiles::kAll, 0);
      for (; keys.next(in); place.advance()) {
        const int stage = place.stage;  // a fresh barrier's phase before the first is complete
        this->wait(kValues ? Shape::v_empty(stage) : Shape::k_empty(stage), place.parity ^ 1);
        load<Shape::kKeys>(kValues ? Shape::v_full(stage) : Shape::k_full(stage),
                           kValues ? keys.run(in).v : keys.run(in).k, keys.key(),
                           kValues ? Shape::v_offset(stage) : Shape::k_offset(stage),
                           Shape::kSlabBytes);
      }
    }
  }
  // Each warpgroup's rows as soon as it is done with those of its last tile.
  __device__ __forceinline__ void load_queries(const GroupInputs& in) {
    int parities = 0;  // a bit for each warpgroup
    for (int i = in.block_begin[blockIdx.x]; i < in.block_begin[blockIdx.x + 1]; ++i) {
      for (int group = 0; group < Shape::kGroups; ++group) {
        if (!KeyTiles<Shape>(in, i, group, 0).next(in)) continue;
        this->wait(Shape::q_empty(group), (parities >> group & 1) ^ 1);
        const GroupTile tile = in.tiles[i];
        load<kGroupRows>(Shape::q_full(group), in.tasks[tile.task].q, tile.row + group * kGroupRows,
                         group * kGroupRows * Shape::kRowBytes, Shape::kQSlabBytes);
        parities ^= 1 << group;
      }
    }
  }

 private:
  // kRows rows of a place from `row` on, all slabs of them, to byte `into` of shared memory.
  template <int kRows>
  __device__ __forceinline__ void load(int full, const ViewPlace& from, int row, int into,
                                       int slab_bytes) {
    this->expect(full, Shape::kSlabs * kRows * Shape::kRowBytes);
    const char* const map = maps_ + int64_t{from.view} * 128;
    if (known_ != from.view) {  // the host wrote it: nothing older may be cached
      asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
      known_ = from.view;
    }
#pragma unroll
    for (int slab = 0; slab < Shape::kSlabs; ++slab)
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
          "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(this->shared +
                                                    uint32_t(into + slab * slab_bytes)),
          "l"(map), "r"(this->at(full)), "r"(slab * Shape::kSlabDim), "r"(row), "r"(from.at[0]),
          "r"(from.at[1]), "r"(from.at[2])
          : "memory");
  }

  const char* maps_;
  int known_ = -1;  // the view whose map was fenced last
};

// Query rows of one warp of a consumer warpgroup, and the products that it takes part in.
template <class Shape, class Element>
class GroupRows : public SoftmaxRows<1, Shape::kDim, Shape::kKeys, Element> {
  using Rows = SoftmaxRows<1, Shape::kDim, Shape::kKeys, Element>;

 public:
  static constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;

  // Of warpgroup `group`; tiles lie from byte `shared` on.
  __device__ __forceinline__ GroupRows(uint32_t shared, int group)
      : q_(matrix_place(shared + uint32_t(group * kGroupRows * Shape::kRowBytes), 0)),
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
  __device__ __forceinline__ void exponentials(const GroupInputs& in, const KeyTiles<Shape>& keys) {
    if (!keys.all_visible())
      this->mask_columns(s_, 0, kKeys, [&](int row) { return keys.limit(in, row); });
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
    const int first = in.tiles[i].row + index * kGroupRows + int(threadIdx.x % 128 / 32) * 16;
    KeyTiles<Shape> keys(in, i, index, first);
    rows.begin(first);
    if (keys.next(in)) {
      bool has_q = true;
      const auto scored = [&] {
        memory.arrive(Shape::k_empty(place.stage));
        if (!keys.is_last()) return;
        memory.arrive(Shape::q_empty(index));
        has_q = false;
      };
      memory.wait(Shape::q_full(index), q_parity);
      q_parity ^= 1;
      memory.wait(Shape::k_full(place.stage), place.parity);
      rows.issue_scores(place.stage);
      rows.template wait<0>();
      scored();
      rows.exponentials(in, keys);  // O is zero: nothing to rescale
      rows.pack_weights();
      while (keys.next(in)) {
        const RingPlace<Shape::kStages> now = place;
        place.advance();
        memory.wait(Shape::k_full(place.stage), place.parity);
        if constexpr (Shape::kTakeTurns) take_turn(index);
        rows.issue_scores(place.stage);
        memory.wait(Shape::v_full(now.stage), now.parity);
        rows.issue_values(now.stage);
        if constexpr (Shape::kTakeTurns) pass_turn<Shape>(index);
        rows.template wait<1>();
        scored();
        rows.exponentials(in, keys);  // while O += P V is in flight
        rows.template wait<0>();
        memory.arrive(Shape::v_empty(now.stage));
        rows.rescale_output();
        rows.pack_weights();
      }
      if (has_q) memory.arrive(Shape::q_empty(index));
      memory.wait(Shape::v_full(place.stage), place.parity);
      rows.issue_values(place.stage);
      keys.find_hidden(in);
      if (Shape::kTakeTurns && keys.has_hidden()) {
        take_turn(index);
        pass_turn<Shape>(index);
      }
      rows.template wait<0>();
      memory.arrive(Shape::v_empty(place.stage));
      place.advance();
    } else {
      keys.find_hidden(in);
    }
    rows.finish(in.tasks[in.tiles[i].task], in);
    for (bool turn = false; keys.has_hidden(); keys.skip_hidden(), turn = true) {
      if (Shape::kTakeTurns && turn) {
        take_turn(index);
        pass_turn<Shape>(index);
      }
      memory.wait(Shape::k_full(place.stage), place.parity);
      memory.arrive(Shape::k_empty(place.stage));
      memory.wait(Shape::v_full(place.stage), place.parity);
      memory.arrive(Shape::v_empty(place.stage));
      place.advance();
    }
  }
}

template <class Shape, class Element>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_group_kernel(const __grid_constant__ GroupInputs in) {
  extern __shared__ unsigned char memory[];
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(memory));
  const BlockMemory<Shape> block{(raw + Shape::kAlignment - 1) / Shape::kAlignment *
                                 Shape::kAlignment};
  if (threadIdx.x == 0) block.init_all();
  __syncthreads();
  const int group = __shfl_sync(0xFFFFFFFFu, int(threadIdx.x) / 128, 0);  // uniform per warp
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kProducerRegisters));
    Producer<Shape> loading(block.shared, in.maps);
    if (threadIdx.x == 0) loading.template load_keys<false>(in);
    if (threadIdx.x == 32) loading.template load_keys<true>(in);
    if (threadIdx.x == 64) loading.load_queries(in);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    if (Shape::kTakeTurns && group == Shape::kGroups) pass_turn<Shape>(group - 1);  // to the first
    consume<Shape, Element>(block, in, group - 1);
  }
}

}  // namespace longnet
