#include "kernels/cpu/gemm_simd.h"

#include <algorithm>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/tile_kernels-inl.h"

#ifndef LONGNET_GEMM_SIMD_ONCE
#define LONGNET_GEMM_SIMD_ONCE
namespace longnet {

inline constexpr int64_t kPanelDepth = 256, kDepthParts = 2;
inline constexpr int64_t kMostTileRows = 6, kMostTileColumns = 64;  // on any target

// Layout of a block's scratch memory. [..] are sizes in floats, row-major.
struct GemmWorkspace {
  float* b;        // [kPanelDepth][kGemmColumns], in groups of a tile's columns
  float* a;        // [kGemmRowStep][kPanelDepth], or the other way if A is transposed
  float* c;        // [kGemmRows][kGemmColumns], sums that are to be rounded to bf16
  float* tile;     // [kMostTileRows][kMostTileColumns], of columns that are no whole vector
  int64_t floats;  // size of the whole

  explicit GemmWorkspace(std::byte* base) {
    ScratchFloats scratch(base);
    b = scratch.take(kPanelDepth * kGemmColumns);
    a = scratch.take(kPanelDepth * kGemmRowStep);
    c = scratch.take(kGemmRows * kGemmColumns);
    tile = scratch.take(kMostTileRows * kMostTileColumns);
    floats = scratch.floats;
  }
};

}  // namespace longnet
#endif

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

static_assert(kTileHeight <= kMostTileRows && kTileWidth <= kMostTileColumns);

template <class Storage>
HWY_INLINE const Storage* element(const Matrix& x, int64_t row, int64_t column) {
  return static_cast<const Storage*>(x.data) + row * x.stride + column;
}

// `count` numbers as fp32.
template <class Storage>
HWY_INLINE void widen_row(const Storage* from, int64_t count, float* to) {
  for_each_vector(
      count, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(load_floats(d, from + i), d, to + i); });
}

// Columns as pack_transposed packs them, of a matrix that is stored as it is multiplied. The last
// vector of a row is filled up with zeros.
template <class Storage>
HWY_NOINLINE void pack_columns(const Storage* from, int64_t stride, int64_t depth, int64_t columns,
                               float* b) {
  constexpr int64_t kAhead = 4;  // rows, of up to 4 KB each
  for (int64_t i = 0; i < depth; ++i, from += stride, b += kTileWidth) {
    if (i + kAhead < depth)
      prefetch_row(from + kAhead * stride, columns * int64_t(sizeof(Storage)));
    for (int64_t j = 0; j < columns; j += kTileWidth) {
      const int64_t width = HWY_MIN(columns - j, int64_t{kTileWidth});
      float* const to = packed_column(b, depth, j);
      widen_row(from + j, width, to);
      std::fill(to + width, to + round_up(width, kLanes), 0.0f);
    }
  }
}

template <class Storage>
HWY_NOINLINE void pack_rows_as_columns(const Storage* from, int64_t stride, int64_t depth,
                                       int64_t columns, float* b) {
  pack_transposed([&](int64_t column) { return from + column * stride; }, columns, depth, b);
}

// One block of C.
class BlockProduct {
 public:
  BlockProduct(const GemmTask& task, const GemmBlock& block, std::byte* workspace)
      : task_(task), block_(block), ws_(workspace) {
    const bool rounds = task.c.dtype != DType::kFloat32;
    c_ = rounds ? ws_.c : task.c.row(block.row) + block.column;
    c_pitch_ = rounds ? kGemmColumns : task.c.stride;
    whole_vectors_ = rounds ? kGemmColumns : block.columns / kLanes * kLanes;
  }

  template <class A, class B>
  void multiply() {
    int64_t begin = 0;
    do {  // once with depth 0 if k is 0
      const int64_t depth = HWY_MIN(task_.k() - begin, kPanelDepth);
      pack_b<B>(begin, depth);
      for (int64_t row = 0; row < block_.rows; row += kGemmRowStep) {
        const int64_t rows = HWY_MIN(block_.rows - row, kGemmRowStep);
        pack_a<A>(begin, depth, row, rows);
        if (begin == 0 && task_.bias != nullptr) set_to_bias(row, rows);
        if (begin == 0 && task_.accumulate && c_ == ws_.c) widen_sums(row, rows);
        multiply_rows_of_a(begin, depth, row, rows);
      }
      begin += depth;
    } while (begin < task_.k());
    if (task_.c.dtype != DType::kFloat32) round_sums();
  }

 private:
  template <class Storage>
  void pack_b(int64_t begin, int64_t depth) {
    if (task_.transpose_b)
      pack_rows_as_columns(element<Storage>(task_.b, block_.column, begin), task_.b.stride, depth,
                           block_.columns, ws_.b);
    else
      pack_columns(element<Storage>(task_.b, begin, block_.column), task_.b.stride, depth,
                   block_.columns, ws_.b);
  }

  template <class Storage>
  void pack_a(int64_t begin, int64_t depth, int64_t row, int64_t rows) {
    row += block_.row;
    if (task_.transpose_a)
      for (int64_t i = 0; i < depth; ++i)
        widen_row(element<Storage>(task_.a, begin + i, row), rows, ws_.a + i * kGemmRowStep);
    else
      for (int64_t i = 0; i < rows; ++i)
        widen_row(element<Storage>(task_.a, row + i, begin), depth, ws_.a + i * kPanelDepth);
  }

  void set_to_bias(int64_t row, int64_t rows) {
    const float* bias = task_.bias + block_.column;
    for (int64_t i = row; i < row + rows; ++i)
      std::copy(bias, bias + block_.columns, c_ + i * c_pitch_);
  }

  // C in bf16, which is added to.
  void widen_sums(int64_t row, int64_t rows) {
    for (int64_t i = row; i < row + rows; ++i)
      widen_row(element<Bf16Bits>(task_.c, block_.row + i, block_.column), block_.columns,
                c_ + i * c_pitch_);
  }

  void multiply_rows_of_a(int64_t begin, int64_t depth, int64_t row, int64_t rows) {
    const bool add = begin > 0 || task_.accumulate || task_.bias != nullptr;
    for (int64_t r = 0; r < rows; r += kTileHeight) {
      const int64_t height = HWY_MIN(rows - r, int64_t{kTileHeight});
      for (int64_t column = 0; column < block_.columns; column += kTileWidth) {
        const int64_t width = HWY_MIN(block_.columns - column, int64_t{kTileWidth});
        const bool whole = column + width <= whole_vectors_;
        float* const c = c_ + (row + r) * c_pitch_ + column;
        const TileArgs args{.a = ws_.a + r * (task_.transpose_a ? 1 : kPanelDepth),
                            .a_pitch = task_.transpose_a ? 1 : kPanelDepth,
                            .a_step = task_.transpose_a ? kGemmRowStep : 1,
                            .b = ws_.b + column * depth,
                            .b_pitch = kTileWidth,
                            .depth = depth,
                            .out = whole ? c : ws_.tile,
                            .out_pitch = whole ? c_pitch_ : kTileWidth};
        for (int64_t i = 0; i < height; ++i)  // C is read when the sums are complete
          prefetch_row(c + i * c_pitch_, width * int64_t(sizeof(float)));
        sum_parts(args, height, ceil_div(width, int64_t{kLanes}), add && whole);
        if (!whole) move_tile(add, height, width, c);
      }
    }
  }

  // The sum over a panel's depth is that of kDepthParts shorter ones, which round less.
  static void sum_parts(TileArgs args, int64_t height, int64_t vectors, bool add) {
    const int64_t part = round_up(ceil_div(args.depth, kDepthParts), int64_t{4});
    int64_t left = args.depth;
    do {  // once with depth 0
      args.depth = HWY_MIN(left, part);
      (add ? tile_function<true> : tile_function<false>)(height, vectors)(args);
      args.a += part * args.a_step;
      args.b += part * kTileWidth;
      add = true;
      left -= part;
    } while (left > 0);
  }

  void move_tile(bool add, int64_t height, int64_t width, float* c) {
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j)
        c[i * c_pitch_ + j] = ws_.tile[i * kTileWidth + j] + (add ? c[i * c_pitch_ + j] : 0.0f);
  }

  void round_sums() {
    for (int64_t i = 0; i < block_.rows; ++i) {
      auto* to = const_cast<Bf16Bits*>(element<Bf16Bits>(task_.c, block_.row + i, block_.column));
      for_each_vector(block_.columns, [&](auto d, int64_t j) HWY_ATTR {
        store_floats(hn::LoadU(d, ws_.c + i * kGemmColumns + j), d, to + j);
      });
    }
  }

  const GemmTask& task_;
  const GemmBlock& block_;
  const GemmWorkspace ws_;
  float* c_;  // the block's
  int64_t c_pitch_;
  int64_t whole_vectors_;  // columns that tiles may write
};

void gemm_on_target(const GemmTask& task, const GemmBlock& block, std::byte* workspace) {
  BlockProduct work(task, block, workspace);
  with_storages(task.a, task.b,
                [&]<class A, class B>(A, B) HWY_ATTR { work.template multiply<A, B>(); });
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(gemm_on_target);

int64_t gemm_workspace_bytes() { return GemmWorkspace(nullptr).floats * int64_t(sizeof(float)); }

void gemm_block(const GemmTask& task, const GemmBlock& block, std::byte* workspace) {
  HWY_DYNAMIC_DISPATCH(gemm_on_target)(task, block, workspace);
}

}  // namespace longnet
#endif  // HWY_ONCE
