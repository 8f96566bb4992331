// The cuda kernel's tile loop, executed lane by lane on the CPU, against the reference kernel.
#include "kernels/cuda/attend_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/emulated_block.h"
#include "kernels/cuda/tile_plan.h"
#include "kernels/cuda/tile_shapes.h"

namespace longnet {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Keys {
  int64_t rows = 0, first_token = 0, token_step = 1, stride = 0;  // stride 0: dense
};
struct Case {
  int64_t head_dim = 64;
  Keys q;
  std::vector<Keys> kv;
  bool causal = false;
  float amplitude = 1.0f;
};

// Storage of one run; the gaps between rows are NaN.
class Rows {
 public:
  Rows(const Keys& run, int64_t d, Tensor tensor, float amplitude)
      : stride_(run.stride > 0 ? run.stride : d), data_(size_t(stride_ * run.rows + 8), 0x7FFF) {
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t i = 0; i < run.rows; ++i) {
      generate_row({7, tensor, run.first_token + i * run.token_step, 0}, d, row.data());
      for (int64_t c = 0; c < d; ++c)
        first()[i * stride_ + c] = bf16_bits(row[size_t(c)] * amplitude);
    }
  }
  uint16_t* first() {  // 16-byte aligned
    return data_.data() + (16 - reinterpret_cast<uintptr_t>(data_.data()) % 16) % 16 / 2;
  }
  int64_t stride() const { return stride_; }

 private:
  int64_t stride_;
  std::vector<uint16_t> data_;
};

struct Result {
  std::vector<float> o, lse;
};

class TaskData {
 public:
  explicit TaskData(const Case& c) : case_(c), q_(c.q, c.head_dim, Tensor::kQuery, c.amplitude) {
    k_.reserve(c.kv.size());
    v_.reserve(c.kv.size());
    for (const Keys& run : c.kv) {
      k_.emplace_back(run, c.head_dim, Tensor::kKey, c.amplitude);
      v_.emplace_back(run, c.head_dim, Tensor::kValue, 1.0f);
      kv_.push_back({.k = k_.back().first(),
                     .v = v_.back().first(),
                     .row_stride = k_.back().stride(),
                     .rows = run.rows,
                     .first_token = run.first_token,
                     .token_step = run.token_step});
    }
  }
  // Rows of O lie d + 2 apart, LSEs 3 apart.
  AttendTask task(Result& into) {
    const int64_t d = case_.head_dim, rows = case_.q.rows;
    if (into.o.empty()) {
      into.o.assign(size_t(rows * (d + 2)), -77.0f);
      into.lse.assign(size_t(rows * 3), -77.0f);
    }
    return {.q = {.q = q_.first(),
                  .row_stride = q_.stride(),
                  .rows = rows,
                  .first_token = case_.q.first_token,
                  .token_step = case_.q.token_step},
            .kv = kv_,
            .out = {into.o.data(), into.lse.data(), d + 2, 3}};
  }
  AttendOptions options(float output_scale = 1.0f) const {
    return {.head_dim = case_.head_dim,
            .dtype = DType::kBFloat16,
            .causal = case_.causal,
            .output_scale = output_scale};
  }

 private:
  Case case_;
  Rows q_;
  std::vector<Rows> k_, v_;
  std::vector<KvRun> kv_;
};

template <class Shape>
void emulate(std::span<const AttendTask> tasks, const AttendOptions& options, bool merge,
             typename EmulatedBlock<Shape>::Order order) {
  const TilePlan plan = plan_tiles(tasks, options.causal, Shape::kRows);
  const TileInputs in = tile_inputs(plan.tasks.data(), plan.runs.data(), plan.tiles.data(),
                                    options.head_dim, options.causal, merge, options.output_scale);
  for (const TileRef& tile : plan.tiles) {
    EmulatedBlock<Shape> block(order);
    attend_tile<Shape>(block, in, tile);
  }
}

template <class Shape>
void expect_like_reference(const Case& c) {
  SCOPED_TRACE(testing::Message() << "d " << c.head_dim << " rows " << c.q.rows << " runs "
                                  << c.kv.size() << " causal " << c.causal << " shape "
                                  << Shape::kDim << "/" << Shape::kRows << "/" << Shape::kKeys);
  TaskData setup(c);
  Result expected, result;
  const auto reference = make_kernel("reference");
  const AttendTask wanted = setup.task(expected);
  reference->attend({&wanted, 1}, setup.options(), 1, {});
  const AttendTask task = setup.task(result);
  static int turn = 0;  // all four orders, in turn
  ++turn;
  emulate<Shape>({&task, 1}, setup.options(), false, {(turn & 1) != 0, (turn & 2) != 0});

  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.o.size(); ++i) {
    difference += std::pow(double(result.o[i]) - double(expected.o[i]), 2);
    norm += std::pow(double(expected.o[i]), 2);
  }
  EXPECT_LE(std::sqrt(difference), 4e-3 * std::sqrt(norm));
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (result.lse[i] == expected.lse[i]) continue;  // also -inf, and the gaps
    EXPECT_NEAR(result.lse[i], expected.lse[i], 1e-5 * std::max(1.0f, std::abs(expected.lse[i])))
        << i;
  }
}

using Shape64 = DefaultShape<64>;
using Shape128 = DefaultShape<128>;
using Shape256 = DefaultShape<256>;

TEST(AttendTileTest, OddShapes) {
  for (const bool causal : {false, true})
    for (const int64_t rows : {1, 17, 128, 131})
      for (const int64_t keys : {0, 1, 63, 64, 65, 200})
        expect_like_reference<Shape64>({.q = {.rows = rows, .first_token = 20, .stride = 64 * 3},
                                        .kv = {{.rows = keys, .stride = 64 * 2}},
                                        .causal = causal});
}

TEST(AttendTileTest, HeadDims) {
  for (const bool causal : {false, true}) {
    const Keys q{.rows = 40}, kv{.rows = 70};
    for (const int64_t d : {8, 24, 48, 64})
      expect_like_reference<Shape64>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
    for (const int64_t d : {80, 96, 128})
      expect_like_reference<Shape128>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
    for (const int64_t d : {136, 256})
      expect_like_reference<Shape256>({.head_dim = d, .q = q, .kv = {kv}, .causal = causal});
  }
}

TEST(AttendTileTest, EveryShapeOfTheLibrary) {
  const Case c{.q = {.rows = 150, .first_token = 100},
               .kv = {{.rows = 90}, {.rows = 160, .first_token = 90}},
               .causal = true};
  for_each_shape([&](auto shape) {
    Case sized = c;
    sized.head_dim = decltype(shape)::kDim;
    expect_like_reference<decltype(shape)>(sized);
  });
}

TEST(AttendTileTest, RunsOfUnequalLength) {  // rows gathered from ranks, w mod r != 0
  const Keys q{.rows = 140, .first_token = 3, .token_step = 6, .stride = 6 * 64};
  std::vector<Keys> kv;
  for (int64_t rank = 0, token = 3; rank < 9; ++rank) {
    const int64_t rows = rank == 4 ? 0 : 13 + rank % 2;
    kv.push_back({.rows = rows, .first_token = token, .token_step = 6});
    token += 6 * rows;
  }
  for (const bool causal : {false, true})
    expect_like_reference<Shape64>({.q = q, .kv = kv, .causal = causal});
}

TEST(AttendTileTest, CausalRunsInAnyOrder) {
  const Keys q{.rows = 130, .first_token = 50, .token_step = 2};
  const Keys early{.rows = 70}, late{.rows = 100, .first_token = 150};
  const Keys never{.rows = 30, .first_token = 100000};
  for (const auto& kv : std::vector<std::vector<Keys>>{
           {late, early}, {early, late}, {never}, {never, early}, {early, late, never}})
    expect_like_reference<Shape64>({.q = q, .kv = kv, .causal = true});
}

TEST(AttendTileTest, PositionsBeyond32Bits) {
  const int64_t far = int64_t{1} << 39, step = int64_t{1} << 28;
  expect_like_reference<Shape64>({.q = {.rows = 130, .first_token = far, .token_step = step},
                                  .kv = {{.rows = 130, .first_token = far, .token_step = step}},
                                  .causal = true});
}

TEST(AttendTileTest, HugeScores) {
  expect_like_reference<Shape64>(
      {.q = {.rows = 64}, .kv = {{.rows = 200}}, .causal = true, .amplitude = 300.0f});
}

// One run against two halves that are merged, the second inside the kernel.
TEST(AttendTileTest, MergeInTheEpilogue) {
  for (const bool causal : {false, true}) {
    const Keys first{.rows = 100}, second{.rows = 90, .first_token = 100};
    const Keys q{.rows = 150, .first_token = 60};
    TaskData whole({.q = q, .kv = {first, second}, .causal = causal});
    TaskData a({.q = q, .kv = {first}, .causal = causal});
    TaskData b({.q = q, .kv = {second}, .causal = causal});
    TaskData nothing({.q = q, .kv = {}, .causal = causal});
    Result expected, result;
    const auto reference = make_kernel("reference");
    const AttendTask wanted = whole.task(expected);
    reference->attend({&wanted, 1}, whole.options(), 1, {});
    for (auto* half : {&nothing, &a, &nothing, &b}) {
      const bool merge = !result.o.empty();
      const AttendTask task = half->task(result);
      emulate<Shape64>({&task, 1}, half->options(), merge, {});
    }
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.o.size(); ++i) {
      difference += std::pow(double(result.o[i]) - double(expected.o[i]), 2);
      norm += std::pow(double(expected.o[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference), 4e-3 * std::sqrt(norm));
    for (size_t i = 0; i < expected.lse.size(); ++i)
      EXPECT_NEAR(result.lse[i], expected.lse[i], 2e-5) << i;
  }
}

TEST(AttendTileTest, NoKeysGiveTheIdentityOfMerge) {
  TaskData setup({.q = {.rows = 5}, .kv = {{.rows = 0}}});
  Result result;
  const AttendTask task = setup.task(result);
  emulate<Shape64>({&task, 1}, setup.options(), false, {});
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_EQ(result.lse[size_t(row * 3)], kMinusInfinity);
    for (int64_t c = 0; c < 64; ++c) EXPECT_EQ(result.o[size_t(row * 66 + c)], 0.0f);
    EXPECT_EQ(result.o[size_t(row * 66 + 64)], -77.0f) << "wrote beyond the row";
  }
}

TEST(TilePlanTest, CausalTilesStopWhereNoRowSees) {
  TaskData setup({.q = {.rows = 300}, .kv = {{.rows = 300}}, .causal = true});
  Result result;
  const AttendTask task = setup.task(result);
  const TilePlan plan = plan_tiles({&task, 1}, true, 128);
  ASSERT_EQ(plan.tiles.size(), 3u);
  EXPECT_EQ(plan.tiles[0].row, 256);
  EXPECT_EQ(plan.tiles[0].keys, 300);
  EXPECT_EQ(plan.tiles[0].unmasked, 257);
  EXPECT_EQ(plan.tiles[2].row, 0);
  EXPECT_EQ(plan.tiles[2].keys, 128);
  EXPECT_EQ(plan.tiles[2].unmasked, 1);
}

TEST(TilePlanTest, MisalignedRowsAreNamed) {
  TaskData setup({.q = {.rows = 2}, .kv = {{.rows = 2}}});
  Result result;
  AttendTask task = setup.task(result);
  EXPECT_EQ(why_misaligned({&task, 1}), "");
  task.q.row_stride += 4;
  EXPECT_NE(why_misaligned({&task, 1}).find("queries of task 0"), std::string::npos);
  task.q.row_stride -= 4;
  task.q.q = static_cast<const uint16_t*>(task.q.q) + 4;
  EXPECT_NE(why_misaligned({&task, 1}).find("not 16-byte aligned"), std::string::npos);
}

// Eight rows of an 8 x 8 matrix lie in distinct groups of four banks, whatever the column.
TEST(AttendTileTest, MatricesHaveNoBankConflicts) {
  for_each_shape([](auto shape) {
    using Shape = decltype(shape);
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      int groups = 0;
      for (int row = 0; row < 8; ++row) groups |= 1 << chunk_offset<Shape>(row, chunk) / 16 % 8;
      EXPECT_EQ(groups, 0xFF);
    }
  });
}

}  // namespace
}  // namespace longnet
