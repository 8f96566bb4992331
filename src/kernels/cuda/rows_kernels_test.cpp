// The kernels of rows.cu, executed on the CPU thread by thread, against the host's functions.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/cuda/testing/emulated_grid.h"
// After the words that it is written in.
#include "kernels/cuda/rows_kernels.cuh"
#include "kernels/reference/reference_kernel.h"

namespace longnet {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// As rows.cu launches: a block per tile of rows.
template <class Task, class Kernel>
void launch(const std::vector<Task>& tasks, int rows_per_tile, Kernel kernel) {
  const auto tiles = row_tiles(std::span<const Task>(tasks), rows_per_tile);
  run_grid(unsigned(tiles.size()), kThreads, [&] { kernel(tasks.data(), tiles.data()); });
}

struct Size {
  int64_t rows, head_dim, stride;
};
const std::vector<Size> kSizes = {{1, 64, 64}, {70, 64, 192}, {130, 24, 40}, {5, 128, 128}};

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>((count + 3) / 4 * 4));
  generate_row({seed, Tensor::kValue, 5, 1}, int64_t(values.size()), values.data());
  values.resize(static_cast<size_t>(count));
  return values;
}

TEST(RowsKernelsTest, GeneratorMakesTheHostsBits) {
  for (const Size& s : kSizes) {
    const size_t count = size_t(s.rows * s.stride);
    std::vector<float> wide(count, -7.0f), wide_host = wide;
    std::vector<uint16_t> bf16(count, 7), fp16 = bf16, bf16_host = bf16;
    FillRows task{.tensor = Tensor::kKey,
                  .head = 3,
                  .first_token = (int64_t{1} << 33) + 5,
                  .token_step = 6,
                  .rows = s.rows,
                  .out = nullptr,
                  .row_stride = s.stride};
    const auto fill = [&](void* out, StoredAs stored) {
      task.out = out;
      launch(std::vector{task}, kFillRows, [&](const FillRows* tasks, const RowTile* tiles) {
        generate_kernel(tasks, tiles, int(s.head_dim), 11, stored);
      });
    };
    fill(wide.data(), StoredAs::kFloat32);
    fill(bf16.data(), StoredAs::kBFloat16);
    fill(fp16.data(), StoredAs::kFloat16);
    for (int64_t i = 0; i < s.rows; ++i) {
      const RowKey key{11, Tensor::kKey, task.first_token + i * task.token_step, 3};
      generate_row(key, s.head_dim, wide_host.data() + i * s.stride);
      generate_row(key, s.head_dim, bf16_host.data() + i * s.stride);
    }
    EXPECT_EQ(wide, wide_host);
    EXPECT_EQ(bf16, bf16_host);
    for (size_t i = 0; i < count; ++i)
      EXPECT_EQ(fp16[i], wide[i] == -7.0f ? 7 : __half_as_ushort(__float2half_rn(wide[i])));
  }
}

TEST(RowsKernelsTest, PackCopiesRowsAndNothingElse) {
  for (const Size& s : kSizes) {
    const std::vector<float> from = numbers(s.rows * s.stride, 1);
    std::vector<float> into(size_t(s.rows * (s.stride + 4)), -1.0f), expected = into;
    const PackTask task{from.data(), into.data(), s.stride, s.stride + 4, s.rows};
    for (int64_t i = 0; i < s.rows; ++i)
      std::copy_n(&from[size_t(i * s.stride)], s.head_dim, &expected[size_t(i * (s.stride + 4))]);
    for (const bool wide : {false, true}) {
      std::ranges::fill(into, -1.0f);
      launch(std::vector{task}, kPackRows, [&](const PackTask* tasks, const RowTile* tiles) {
        wide ? pack_kernel<uint4>(tasks, tiles, s.head_dim * 4, 4)
             : pack_kernel<uint32_t>(tasks, tiles, s.head_dim * 4, 4);
      });
      EXPECT_EQ(into, expected);
    }
  }
}

TEST(RowsKernelsTest, RoundAndWidenAreTheReferences) {
  for (const Size& s : kSizes) {
    const AttendOptions options{.head_dim = s.head_dim, .dtype = DType::kBFloat16};
    const std::vector<float> from = numbers(s.rows * s.stride, 2);
    std::vector<uint16_t> rounded(size_t(s.rows * s.stride), 9), rounded_host = rounded;
    std::vector<float> widened(from.size(), -1.0f), widened_host = widened;
    PackTask down{from.data(), rounded.data(), s.stride, s.stride, s.rows};
    PackTask up{rounded_host.data(), widened.data(), s.stride, s.stride, s.rows};
    launch(std::vector{down}, kPackRows, [&](const PackTask* tasks, const RowTile* tiles) {
      convert_kernel(tasks, tiles, int(s.head_dim), true);
    });
    down.into = rounded_host.data();
    make_reference_kernel()->round({&down, 1}, options, 1);
    EXPECT_EQ(rounded, rounded_host);
    launch(std::vector{up}, kPackRows, [&](const PackTask* tasks, const RowTile* tiles) {
      convert_kernel(tasks, tiles, int(s.head_dim), false);
    });
    up.into = widened_host.data();
    make_reference_kernel()->widen({&up, 1}, options, 1);
    EXPECT_EQ(widened, widened_host);
  }
}

TEST(RowsKernelsTest, MergeIsTheReferences) {
  for (const Size& s : kSizes)
    for (const MergeRule rule : {MergeRule::kLse, MergeRule::kSum})
      for (const bool wide : {false, true}) {
        std::vector<float> o = numbers(s.rows * s.stride, 3), lse = numbers(s.rows, 4);
        std::vector<float> into = numbers(s.rows * s.stride, 5), into_lse = numbers(2 * s.rows, 6);
        if (s.rows > 4) {  // rows that one side, or both, did not see
          lse[1] = into_lse[2 * 2] = kMinusInfinity;
          lse[3] = into_lse[2 * 3] = kMinusInfinity;
        }
        std::vector<float> into_host = into, lse_host = into_lse;
        MergeTask task{{o.data(), lse.data(), s.stride, 1},
                       {into.data(), into_lse.data(), s.stride, 2},
                       s.rows};
        launch(std::vector{task}, kMergeRows, [&](const MergeTask* tasks, const RowTile* tiles) {
          const bool sum = rule == MergeRule::kSum;
          wide ? merge_kernel<float4>(tasks, tiles, int(s.head_dim), sum)
               : merge_kernel<float>(tasks, tiles, int(s.head_dim), sum);
        });
        task.into = {into_host.data(), lse_host.data(), s.stride, 2};
        make_reference_kernel()->merge({&task, 1}, rule, {.head_dim = s.head_dim}, 1);
        for (size_t i = 0; i < into.size(); ++i) ASSERT_NEAR(into[i], into_host[i], 2e-6) << i;
        for (size_t i = 0; i < lse_host.size(); ++i)
          if (into_lse[i] != lse_host[i]) {
            ASSERT_NEAR(into_lse[i], lse_host[i], 2e-6) << i;
          }
      }
}

TEST(RowsKernelsTest, WidenGivesBlindRowsTheIdentityOfMerge) {
  const int64_t rows = 70, d = 24;
  const std::vector<float> values = numbers(rows * d, 7);
  for (const StoredAs stored : {StoredAs::kBFloat16, StoredAs::kFloat16}) {
    std::vector<uint16_t> from;
    for (const float x : values)
      from.push_back(stored == StoredAs::kBFloat16 ? bf16_bits(x)
                                                   : __half_as_ushort(__float2half_rn(x)));
    std::vector<float> o(size_t(rows * (d + 1)), -7.0f), lse = numbers(rows, 8);
    lse[3] = std::numeric_limits<float>::quiet_NaN();
    lse[4] = -3e38f;
    const WidenTask task{from.data(), {o.data(), lse.data(), d + 1, 1}, rows};
    launch(std::vector{task}, kMergeRows, [&](const WidenTask* tasks, const RowTile* tiles) {
      widen_kernel(tasks, tiles, int(d), stored, 0.5f);
    });
    for (int64_t i = 0; i < rows; ++i) {
      const bool blind = i == 3 || i == 4;
      if (blind) {
        EXPECT_EQ(lse[size_t(i)], kMinusInfinity);
      }
      for (int64_t c = 0; c < d; ++c) {
        const uint16_t bits = from[size_t(i * d + c)];
        const float x =
            stored == StoredAs::kBFloat16 ? bf16_value(bits) : __half2float(__ushort_as_half(bits));
        EXPECT_EQ(o[size_t(i * (d + 1) + c)], blind ? 0.0f : x * 0.5f);
      }
      EXPECT_EQ(o[size_t(i * (d + 1) + d)], -7.0f);
    }
  }
}

TEST(RowsKernelsTest, DigestsAreTheHosts) {
  for (const Size& s : kSizes)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const RowFormat format{.seed = 2, .head_dim = s.head_dim, .dtype = dtype};
      std::vector<float> storage(size_t(s.rows * s.stride));
      const FillRows task{.tensor = Tensor::kValue,
                          .head = 2,
                          .first_token = 90,
                          .token_step = 3,
                          .rows = s.rows,
                          .out = storage.data(),
                          .row_stride = s.stride};
      uint64_t expected = 0;
      make_cpu_row_worker()->fill({&task, 1}, format, 1, &expected);
      const int64_t bytes = dtype == DType::kFloat32 ? 4 : 2;
      unsigned long long digest = 0;
      launch(std::vector{task}, kFillRows, [&](const FillRows* tasks, const RowTile* tiles) {
        digest_kernel(tasks, tiles, int(s.head_dim * bytes / 8), bytes, &digest);
      });
      EXPECT_EQ(digest, expected);
    }
}

TEST(RowsKernelsTest, SummariesAreTheHosts) {
  for (const Size& s : kSizes) {
    std::vector<float> o = numbers(s.rows * s.stride, 9), lse = numbers(s.rows * 2, 10);
    if (s.rows > 60) {
      lse[2 * 5] = kMinusInfinity;
      lse[2 * 6] = o[size_t(7 * s.stride + 2)] = std::numeric_limits<float>::quiet_NaN();
    }
    const OutputRows task{.o = o.data(),
                          .lse = lse.data(),
                          .o_stride = s.stride,
                          .lse_stride = 2,
                          .head = 1,
                          .first_token = 40,
                          .token_step = 5,
                          .rows = s.rows};
    OutputSummary expected;
    make_cpu_row_worker()->summarize({&task, 1}, s.head_dim, 1, {&expected, 1});
    TileSummary found;
    launch(std::vector{task}, kFillRows, [&](const OutputRows* tasks, const RowTile* tiles) {
      summarize_kernel(tasks, tiles, int(s.head_dim), &found);
    });
    EXPECT_EQ(found.digest, expected.digest);
    EXPECT_EQ(found.absent_rows, expected.absent_rows);
    EXPECT_EQ(found.nan_values, expected.nan_values);
    EXPECT_EQ(found.min, expected.min);
    EXPECT_EQ(found.max, expected.max);
    EXPECT_NEAR(found.sum, expected.sum, 1e-9);
    EXPECT_NEAR(found.sum_squares, expected.sum_squares, 1e-8);
    EXPECT_NEAR(found.lse_sum, expected.lse_sum, 1e-9);
  }
}

TEST(RowsKernelsTest, FlatRangesAreCoveredByAnyGrid) {
  for (const int64_t count : {1, 255, 1000}) {
    std::vector<float> values(size_t(count + 1), 1.0f);
    run_grid(2, kThreads, [&] { fill_kernel(values.data(), count, 2.0f); });
    EXPECT_EQ(std::ranges::count(values, 2.0f), count);
    EXPECT_EQ(values.back(), 1.0f);
    values[0] = values[size_t(count) / 2] = std::numeric_limits<float>::quiet_NaN();
    unsigned long long nans = 10;
    run_grid(2, kThreads, [&] { nan_kernel(values.data(), count, &nans); });
    EXPECT_EQ(nans, count > 1 ? 12u : 11u);
  }
}

}  // namespace
}  // namespace longnet
