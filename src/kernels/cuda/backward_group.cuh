// The backward pass of the `cuda_sm90a` kernel: products by wgmma.
//
// Two warpgroups multiply, warps of a third one load. Of a tile of columns, S and dP are issued
// together; the exponentials run while dP is computed, dS while P^T dO is, and the sums of a tile
// are still in flight when the next one's products are issued. P and dS stay in registers, as A
// operands.
#pragma once
#include "kernels/cuda/backward_rows.cuh"
#include "kernels/cuda/block_memory.cuh"

namespace longnet {

// The rows of a consumer warpgroup, of which each of its four warps has 16.
template <bool kRowsAreKeys, class Shape>
class BackwardGroup : public BackwardTileRows<kRowsAreKeys, Shape> {
  using Base = BackwardTileRows<kRowsAreKeys, Shape>;
  static constexpr int kColumns = Shape::kColumns;
  // P and dS in the same registers, where the sums leave no others.
  static constexpr bool kSharesOperands = kRowsAreKeys && Shape::kDim > 64;

 public:
  __device__ __forceinline__ BackwardGroup(uint32_t shared, int tile_row)
      : Base(shared, tile_row),
        rows_(descriptor_address(
            shared + uint32_t(__shfl_sync(0xFFFFFFFFu, int(threadIdx.x) / 128, 0) * 64 * 128), 0)),
        columns_(descriptor_address(shared + uint32_t(Shape::columns_offset(0)), kColumns * 128)) {}

  // Adds the products with the columns of `stage`, and calls when_last_is_done() as soon as those
  // of the tile before are complete.
  template <class WhenLastIsDone>
  __device__ __forceinline__ void step(const BackwardInputs& in, const typename Base::Tiles& tile,
                                       int stage, WhenLastIsDone when_last_is_done) {
    const uint32_t a = columns_ + uint32_t(stage * (2 * Shape::kColumnBytes / 16));
    const uint32_t b = a + uint32_t(Shape::kColumnBytes / 16);
    issue_product(s_, rows_, a);
    issue_product(d_, rows_ + uint32_t(Shape::kRowBytes / 16), b);
    wgmma_wait<1>();  // S, and the sums of the tile before
    keep_in_place(s_[0]);
    when_last_is_done();
    if (!tile.all_visible()) this->mask(s_, in, tile);
    this->weights(s_, in.scale_log2, stage);
    if constexpr (kRowsAreKeys) {
      issue_sums(this->second_, p_, s_, b);
      wgmma_wait<1>();  // dP
    } else {
      stay_behind_weights();
      wgmma_wait<0>();
    }
    keep_in_place(d_[0]);
    this->differences(d_, s_, in.output_scale, stage);
    if constexpr (kSharesOperands) {
      wgmma_wait<0>();  // P^T dO
      issue_sums(this->first_, p_, d_, a);
    } else {
      issue_sums(this->first_, ds_, d_, a);
    }
  }
  __device__ __forceinline__ void wait_for_sums() {
    wgmma_wait<0>();
    keep_in_place(this->first_[0]);
    if constexpr (kRowsAreKeys) keep_in_place(this->second_[0]);
  }

 private:
  using Operands = Fragment[kColumns / 16][1];

  // C = rows columns^T, in flight.
  static __device__ __forceinline__ void issue_product(typename Base::Products& c, uint32_t rows,
                                                       uint32_t columns) {
    wgmma_fence(c[0]);
#pragma unroll
    for (int k = 0; k < Shape::kDim / 16; ++k) {
      const int dims = k % 4 * 32;  // bytes within a row
      wgmma_multiply(
          c[0], matrix_descriptor(rows + uint32_t(k / 4 * Shape::kRows * 128 + dims) / 16),
          matrix_descriptor(columns + uint32_t(k / 4 * kColumns * 128 + dims) / 16), k > 0);
    }
    wgmma_commit();
  }
  // Sums += weights columns, in flight; `operands` may not change before.
  static __device__ __forceinline__ void issue_sums(typename Base::Sums& sums, Operands& operands,
                                                    const typename Base::Products& weights,
                                                    uint32_t columns) {
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      pack_operand(operands[k], weights, k);
      asm volatile(""
                   : "+r"(operands[k][0][0]), "+r"(operands[k][0][1]), "+r"(operands[k][0][2]),
                     "+r"(operands[k][0][3]));  // packed before the fence
    }
    wgmma_fence(sums[0]);
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k)
      wgmma_multiply_add(sums[0], operands[k][0], matrix_descriptor(columns + uint32_t(k * 128)));
    wgmma_commit();
  }
  // As in GroupRows::exponentials; P is not negative, which ptxas knows of numbers, not of bits.
  __device__ __forceinline__ void stay_behind_weights() const {
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) bits |= __float_as_uint(s_[0][n][i]);
    }
    if (__any_sync(0xFFFFFFFFu, int(bits) < 0)) asm volatile("trap;" ::: "memory");
  }

  uint32_t rows_, columns_;  // lower halves of matrix descriptors
  typename Base::Products s_, d_;
  Operands p_, ds_;
};

// The warps that load all tiles of a block: one thread asks TMA for rows, and thread `column`
// brings the statistics of a column that is a query.
template <bool kRowsAreKeys, class Shape>
class TileLoader {
 public:
  // Arrivals at a barrier "full" of columns: the thread that asks, and threads with statistics.
  static constexpr int kStatisticsThreads = kRowsAreKeys ? (Shape::kColumns + 31) / 32 * 32 : 0;
  static constexpr int kArrivals = 1 + kStatisticsThreads;

  __device__ __forceinline__ TileLoader(const BlockMemory<Shape>& memory, int thread)
      : memory_(memory), thread_(thread) {}

  __device__ __forceinline__ void run(const BackwardInputs& in) const {
    if (thread_ >= (kStatisticsThreads > 0 ? kStatisticsThreads : 1)) return;
    PipelineState<Shape::kStages> pipe;
    int rows_parity = 1;  // a fresh barrier's phase before the first counts as complete
    for (int i = in.block_begin[blockIdx.x]; i < in.block_begin[blockIdx.x + 1]; ++i) {
      const BackwardTile tile = in.tiles[i];
      if (thread_ == 0) {
        const BlockRows<kRowsAreKeys> rows(in, tile);
        memory_.wait(Shape::kRowsEmpty, rows_parity);
        memory_.expect(Shape::kRowsFull, 2 * Shape::kRowBytes);
        copy<Shape::kRows, kBackwardBoxRows>(in, rows.place(in), rows.first, 0, Shape::kRowsFull);
      }
      rows_parity ^= 1;
      ColumnTiles<kRowsAreKeys, Shape::kRows, Shape::kColumns> columns(in, tile);
      while (columns.next(in)) {
        memory_.wait(Shape::empty(pipe.stage), pipe.parity ^ 1);
        if (thread_ == 0) {
          memory_.expect(Shape::full(pipe.stage), 2 * Shape::kColumnBytes);
          copy<Shape::kColumns, Shape::kColumns>(in, columns.place(in), columns.first(),
                                                 Shape::columns_offset(pipe.stage),
                                                 Shape::full(pipe.stage));
        }
        if constexpr (kRowsAreKeys) {
          if (thread_ < Shape::kColumns)
            store_statistics<Shape>(memory_.shared, pipe.stage, thread_,
                                    statistics_of(columns.task(in), columns.first() + thread_));
          memory_.arrive_each(Shape::full(pipe.stage));
        }
        pipe.advance();
      }
    }
  }

 private:
  // Rows of two tensors from `row` on, to byte `into`.
  template <int kRows, int kBoxRows>
  __device__ __forceinline__ void copy(const BackwardInputs& in, const PlacePair& place, int row,
                                       int into, int barrier) const {
    copy<kRows, kBoxRows>(in, place.a, row, into, barrier);
    copy<kRows, kBoxRows>(in, place.b, row, into + kRows * Shape::kDim * 2, barrier);
  }
  // Slab by slab, box by box.
  template <int kRows, int kBoxRows>
  __device__ __forceinline__ void copy(const BackwardInputs& in, const ViewPlace& place, int row,
                                       int into, int barrier) const {
#pragma unroll
    for (int slab = 0; slab < Shape::kDim / 64; ++slab) {
#pragma unroll
      for (int box = 0; box < kRows; box += kBoxRows)
        memory_.copy_box(static_cast<const char*>(in.maps), place, slab * 64, row + box,
                         into + (slab * kRows + box) * 128, barrier);
    }
  }

  BlockMemory<Shape> memory_;
  int thread_;
};

// A warpgroup that multiplies.
template <bool kRowsAreKeys, class Shape>
__device__ __forceinline__ void sum_tiles(const BlockMemory<Shape>& memory,
                                          const BackwardInputs& in) {
  PipelineState<Shape::kStages> pipe;
  int rows_parity = 0;
  // The stage before `next`. Where a lane has read statistics in it, each arrives for itself.
  const auto give_back = [&](const PipelineState<Shape::kStages>& next) {
    if constexpr (kRowsAreKeys)
      memory.arrive_each(Shape::empty(next.stage_before()));
    else
      memory.arrive(Shape::empty(next.stage_before()));
  };
  for (int i = in.block_begin[blockIdx.x]; i < in.block_begin[blockIdx.x + 1]; ++i) {
    const BackwardTile tile = in.tiles[i];
    ColumnTiles<kRowsAreKeys, Shape::kRows, Shape::kColumns> columns(in, tile);
    BackwardGroup<kRowsAreKeys, Shape> rows(memory.shared, tile.row);
    if constexpr (!kRowsAreKeys) rows.load_statistics(in.tasks[tile.owner]);
    memory.wait(Shape::kRowsFull, rows_parity);
    rows_parity ^= 1;
    bool first = true;
    while (columns.next(in)) {
      memory.wait(Shape::full(pipe.stage), pipe.parity);
      rows.step(in, columns, pipe.stage, [&] {
        if (!first) give_back(pipe);
      });
      first = false;
      pipe.advance();
    }
    memory.arrive(Shape::kRowsEmpty);  // the last S and dP are there
    rows.wait_for_sums();
    if (!first) give_back(pipe);
    rows.finish(in, BlockRows<kRowsAreKeys>(in, in.tiles[i]));
  }
}

// A block stays on its multiprocessor and does a list of tiles.
template <bool kRowsAreKeys, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    backward_group_kernel(const __grid_constant__ BackwardInputs in) {
  using Loader = TileLoader<kRowsAreKeys, Shape>;
  extern __shared__ unsigned char raw_memory[];
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(raw_memory));
  const BlockMemory<Shape> memory{(raw + Shape::kAlignment - 1) / Shape::kAlignment *
                                  Shape::kAlignment};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      memory.init(Shape::full(stage), Loader::kArrivals);
      memory.init(Shape::empty(stage), kRowsAreKeys ? Shape::kConsumers : Shape::kConsumers / 32);
    }
    memory.init(Shape::kRowsFull, 1);
    memory.init(Shape::kRowsEmpty, Shape::kConsumers / 32);
    memory.fence_barrier_init();
  }
  for (int view = int(threadIdx.x); view < in.num_views; view += Shape::kThreads)
    memory.acquire_map(static_cast<const char*>(in.maps), view);
  __syncthreads();
  const int group = __shfl_sync(0xFFFFFFFFu, int(threadIdx.x) / 128, 0);  // uniform per warp
  if (group == Shape::kConsumers / 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kProducerRegisters));
    Loader(memory, int(threadIdx.x) - Shape::kConsumers).run(in);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    sum_tiles<kRowsAreKeys, Shape>(memory, in);
  }
}

}  // namespace longnet
