// The backward passes of the kernels of the cores against the reference, on every instruction set
// of the machine that they support.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/random.h"
#include "kernels/testing/attend_case.h"
#include "kernels/testing/cpu_kernels.h"
#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

constexpr float kGuard = 12345.0f;

// Elements of a tensor in its storage type; NaN where no row has been made.
struct Elements {
  std::vector<float> fp32;
  std::vector<uint16_t> bf16;
  int64_t element_bytes;

  Elements(int64_t count, DType dtype) : element_bytes(dtype_bytes(dtype)) {
    if (dtype == DType::kFloat32) fp32.assign(size_t(count), NAN);
    if (dtype == DType::kBFloat16) bf16.assign(size_t(count), 0x7FC0);
  }
  std::byte* at(int64_t element) {
    void* const base = bf16.empty() ? static_cast<void*>(fp32.data()) : bf16.data();
    return static_cast<std::byte*>(base) + element * element_bytes;
  }
  void make_row(int64_t element, uint64_t seed, int64_t row, int64_t d, float amplitude) {
    std::vector<float> values(static_cast<size_t>(d));
    generate_row({seed, Tensor::kKey, row, 0}, d, values.data());
    for (int64_t c = 0; c < d; ++c) {
      const float x = values[size_t(c)] * amplitude;
      if (bf16.empty())
        fp32[size_t(element + c)] = x;
      else
        bf16[size_t(element + c)] = bf16_bits(x);
    }
  }
};

struct Gradients {
  std::vector<float> q, kv;
  bool operator==(const Gradients&) const = default;
};

double norm(const std::vector<float>& a, const std::vector<float>& minus) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += (double(a[i]) - minus[i]) * (double(a[i]) - minus[i]);
  return std::sqrt(sum);
}

// Relative L2 error of dQ and of dK and dV. Gradients that cancel, as those of a single key do, are
// held to a part of the other's norm.
double relative_error(const Gradients& a, const Gradients& b) {
  const std::vector<float> no_q(b.q.size(), 0.0f), no_kv(b.kv.size(), 0.0f);
  const double q = norm(b.q, no_q), kv = norm(b.kv, no_kv), least = 0.1 * std::hypot(q, kv);
  const double q_error = norm(a.q, b.q), kv_error = norm(a.kv, b.kv);
  const auto ratio = [&](double error, double n) { return error == 0 ? 0 : error / (n + least); };
  const double of_q = ratio(q_error, q), of_kv = ratio(kv_error, kv);
  return std::isnan(of_kv) ? of_kv : std::max(of_kv, of_q);  // max drops a NaN on its right
}

// One task with its own storage: rows at odd addresses, NaN between them, gradients guarded.
class BackwardCase {
 public:
  explicit BackwardCase(const AttendSpec& spec)
      : spec_(spec),
        q_(extent(spec.q), spec.dtype),
        grad_out_(extent(spec.q), spec.dtype),
        kv_(kv_extent(spec), spec.dtype),
        statistics_(size_t(2 * spec.q.rows + 1)) {
    const int64_t d = spec.head_dim;
    for (int64_t i = 0; i < spec.q.rows; ++i) {
      q_.make_row(element(spec.q, i), 1, i, d, spec.q.amplitude);
      grad_out_.make_row(element(spec.q, i), 2, i, d, 1.0f);
    }
    int64_t at = 0;
    for (const RunSpec& run : spec.kv) {
      for (int64_t i = 0; i < run.rows; ++i) {
        kv_.make_row(at + element(run, i), 3 + uint64_t(at), i, d, run.amplitude);
        kv_.make_row(at + extent(run) + element(run, i), 4 + uint64_t(at), i, d, 1.0f);
      }
      runs_.push_back({.k = kv_.at(at + kOffset),
                       .v = kv_.at(at + extent(run) + kOffset),
                       .row_stride = d + run.gap,
                       .rows = run.rows,
                       .first_token = run.first_token,
                       .token_step = run.token_step});
      at += 2 * extent(run);
    }
    make_statistics();
  }

  AttendOptions options() const {
    return {.head_dim = spec_.head_dim,
            .dtype = spec_.dtype,
            .causal = spec_.causal,
            .output_scale = spec_.output_scale,
            .progress_hook = spec_.progress_hook};
  }

  // As a buffer that nothing has written yet.
  void poison_statistics(int64_t row) {
    std::memset(&statistics_[size_t(2 * row)], 0xff, 2 * sizeof(float));
  }

  Gradients run(const AttentionKernel& kernel, int threads = 1, int times = 1) const {
    Gradients out{std::vector<float>(size_t(extent(spec_.q)), kGuard),
                  std::vector<float>(size_t(kv_extent(spec_)), kGuard)};
    for_each_row([&](bool of_q, int64_t element) {
      std::fill_n((of_q ? out.q : out.kv).begin() + element, spec_.head_dim, 0.0f);
    });
    const BackwardGrid backward{.attend = attend_,
                                .grad_out = grad_out_first_,
                                .grad_q = out.q.data() + kOffset,
                                .statistics = statistics_.data(),
                                .keys = keys_,
                                .grad_keys = out.kv.data()};
    const PoisonedWorkspace workspace(kernel.backward_workspace_bytes(options(), threads));
    for (int i = 0; i < times; ++i)
      kernel.attend_backward({&backward, 1}, options(), threads, workspace.bytes());
    Gradients rest = out;
    for_each_row([&](bool of_q, int64_t element) {
      std::fill_n((of_q ? rest.q : rest.kv).begin() + element, spec_.head_dim, kGuard);
    });
    const auto untouched = [](float x) { return x == kGuard; };
    EXPECT_TRUE(std::all_of(rest.q.begin(), rest.q.end(), untouched));
    EXPECT_TRUE(std::all_of(rest.kv.begin(), rest.kv.end(), untouched));
    return out;
  }

 private:
  static constexpr int64_t kOffset = 3;  // rows start at an odd multiple of the element

  int64_t extent(const RunSpec& run) const {
    return kOffset + run.rows * (spec_.head_dim + run.gap);
  }
  int64_t kv_extent(const AttendSpec& spec) const {
    int64_t sum = 0;
    for (const RunSpec& run : spec.kv) sum += 2 * extent(run);
    return sum;
  }
  int64_t element(const RunSpec& run, int64_t row) const {
    return kOffset + row * (spec_.head_dim + run.gap);
  }
  template <class Body>
  void for_each_row(const Body& body) const {
    for (int64_t i = 0; i < spec_.q.rows; ++i) body(true, element(spec_.q, i));
    int64_t at = 0;
    for (const RunSpec& run : spec_.kv)
      for (int64_t tensor = 0; tensor < 2; ++tensor, at += extent(run))
        for (int64_t i = 0; i < run.rows; ++i) body(false, at + element(run, i));
  }

  // L and delta by the reference kernel.
  void make_statistics() {
    const int64_t rows = spec_.q.rows, d = spec_.head_dim;
    std::vector<float> o(size_t(rows * d)), lse(static_cast<size_t>(rows));
    grad_out_first_ = grad_out_.at(kOffset);
    keys_ = kv_.at(0);
    attend_ = {.task = {.q = {.q = q_.at(kOffset),
                              .row_stride = d + spec_.q.gap,
                              .rows = rows,
                              .first_token = spec_.q.first_token,
                              .token_step = spec_.q.token_step},
                        .kv = runs_,
                        .out = {o.data(), lse.data(), d, 1}}};
    const auto reference = make_reference_kernel();
    reference->attend({&attend_, 1}, options(), 1, {});
    const DeltaTask task{.out = attend_.task.out,
                         .grad_out = grad_out_first_,
                         .statistics = statistics_.data(),
                         .grad_out_stride = d + spec_.q.gap,
                         .rows = rows};
    reference->delta({&task, 1}, options(), 1);
    attend_.task.out = {};
  }

  AttendSpec spec_;
  Elements q_, grad_out_, kv_;
  std::vector<float> statistics_;
  std::vector<KvRun> runs_;
  AttendGrid attend_;
  const void *grad_out_first_ = nullptr, *keys_ = nullptr;
};

class CpuBackwardTest : public testing::Test {
 protected:
  void expect_like_reference(const AttendSpec& spec, double tolerance = 1e-6) {
    const BackwardCase backward(spec);
    const Gradients expected = backward.run(*reference_);
    on_every_target([&](const AttentionKernel& kernel) {
      EXPECT_LE(relative_error(backward.run(kernel), expected),
                tolerance + rounding_of_probabilities(kernel, spec.dtype))
          << to_string(spec);
    });
  }

  void expect_like_reference_all_ways(const AttendSpec& all) {
    in_every_way(all, [&](const AttendSpec& spec) { expect_like_reference(spec); });
  }

  const std::unique_ptr<AttentionKernel> cpu_ = make_kernel("cpu");
  const std::unique_ptr<AttentionKernel> reference_ = make_kernel("reference");
};

// Rows apart, of a few pieces for threads; L, -inf too, goes through as it is.
TEST_F(CpuBackwardTest, DeltaIsTheReferencesOnEveryTarget) {
  constexpr int64_t kRows = 1030, kGap = 5, kStride = 3;
  for (const int64_t d : {8, 24, 64, 256})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Elements o(kRows * (d + kGap), DType::kFloat32), grad_out(kRows * (d + kGap), dtype);
      std::vector<float> lse(kRows, 1.5f);
      lse[7] = -INFINITY;
      for (int64_t i = 0; i < kRows; ++i) {
        o.make_row(i * (d + kGap), 1, i, d, 1);
        grad_out.make_row(i * (d + kGap), 2, i, d, 1);
      }
      const auto statistics = [&](const AttentionKernel& kernel, int threads) {
        std::vector<float> out(kRows * kStride, kGuard);
        const DeltaTask task{.out = {o.fp32.data(), lse.data(), d + kGap, 1},
                             .grad_out = grad_out.at(0),
                             .statistics = out.data(),
                             .grad_out_stride = d + kGap,
                             .statistics_stride = kStride,
                             .rows = kRows};
        kernel.delta({&task, 1}, {.head_dim = d, .dtype = dtype}, threads);
        return out;
      };
      const std::vector<float> expected = statistics(*reference_, 1);
      for (const std::string& target : simd_targets()) {
        const ScopedSimdTarget use(target);
        const std::vector<float> got = statistics(*cpu_, 1);
        for (size_t i = 0; i < got.size(); ++i) {
          if (i % kStride != 1)
            ASSERT_EQ(got[i], expected[i]) << target << " " << i;
          else
            ASSERT_NEAR(got[i], expected[i], 1e-6 * (10 + std::fabs(expected[i])))
                << target << " " << i;
        }
        EXPECT_EQ(statistics(*cpu_, 2), got) << target;
      }
    }
}

TEST_F(CpuBackwardTest, OddShapes) {
  for (const int64_t d : {8, 64, 80, 256})
    for (const int64_t rows : {0, 1, 7, 49})
      for (const int64_t keys : {0, 1, 17, 127, 200})
        expect_like_reference_all_ways({.head_dim = d,
                                        .q = {.rows = rows, .first_token = keys / 2, .gap = 7},
                                        .kv = {{.rows = keys, .gap = d}}});
}

TEST_F(CpuBackwardTest, EveryHeadDim) {
  for (int64_t d = 8; d <= 256; d += 8)
    expect_like_reference_all_ways(
        {.head_dim = d, .q = {.rows = 9, .first_token = 60}, .kv = {{.rows = 71}}});
}

TEST_F(CpuBackwardTest, SeveralRunsInAnyOrder) {
  const RunSpec q{.rows = 60, .first_token = 50, .token_step = 3, .gap = 64};
  expect_like_reference_all_ways(
      {.q = q, .kv = {{.rows = 0}, {.rows = 70, .first_token = 150}, {.rows = 0}, {.rows = 70}}});
  std::vector<RunSpec> striped, single;
  for (int64_t i = 0; i < 4; ++i)
    striped.push_back({.rows = 45, .first_token = 3 - i, .token_step = 4});
  expect_like_reference_all_ways({.head_dim = 48, .q = q, .kv = striped});
  for (int64_t i = 0; i < 150; ++i)
    single.push_back({.rows = 1, .first_token = 150 - i, .token_step = 0});
  expect_like_reference_all_ways({.head_dim = 8, .q = q, .kv = single});
  expect_like_reference_all_ways({.q = q, .kv = {}});
}

TEST_F(CpuBackwardTest, CausalPositions) {
  const auto expect = [&](RunSpec q, std::vector<RunSpec> kv) {
    expect_like_reference({.causal = true, .q = q, .kv = std::move(kv)});
  };
  expect({.rows = 330}, {{.rows = 330}});
  expect({.rows = 30}, {{.rows = 30, .first_token = 100}});                     // sees nothing
  expect({.rows = 60, .first_token = 80}, {{.rows = 90, .first_token = 100}});  // some see nothing
  expect({.rows = 50, .first_token = 7, .token_step = 16},
         {{.rows = 50, .first_token = 3, .token_step = 16}});
  expect({.rows = 50, .token_step = int64_t{1} << 33},
         {{.rows = 99, .token_step = int64_t{1} << 32}});
  expect({.rows = 70, .first_token = 64}, {{.rows = 64}, {.rows = 64, .first_token = 64}});
  expect({.rows = 1, .first_token = 5, .token_step = 0}, {{.rows = 9}});
}

TEST_F(CpuBackwardTest, SeveralBlocksWithTheSameBitsOnAnyThreads) {
  for (const bool causal : {false, true}) {
    const AttendSpec spec{.head_dim = 8,
                          .causal = causal,
                          .q = {.rows = 1100, .first_token = 400},
                          .kv = {{.rows = 700}, {.rows = 901, .first_token = 700}}};
    expect_like_reference(spec);
    const BackwardCase backward(spec);
    on_every_target([&](const AttentionKernel& kernel) {
      const Gradients one = backward.run(kernel);
      for (const int threads : {2, 4}) EXPECT_EQ(backward.run(kernel, threads), one) << threads;
    });
  }
}

TEST_F(CpuBackwardTest, LongSumsStayExact) {  // queries and keys of several blocks of 2048
  expect_like_reference({.q = {.rows = 3}, .kv = {{.rows = 65536}}}, 5e-7);
  expect_like_reference({.q = {.rows = 65536}, .kv = {{.rows = 3}}}, 5e-7);
}

TEST_F(CpuBackwardTest, StatisticsThatNobodyWroteAreSeen) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    BackwardCase backward({.dtype = dtype, .q = {.rows = 40}, .kv = {{.rows = 70}}});
    backward.poison_statistics(33);
    on_every_target([&](const AttentionKernel& kernel) {
      const Gradients got = backward.run(kernel);
      EXPECT_TRUE(std::ranges::any_of(got.q, [](float x) { return std::isnan(x); }));
      EXPECT_TRUE(std::ranges::any_of(got.kv, [](float x) { return std::isnan(x); }));
    });
  }
}

TEST_F(CpuBackwardTest, LargeScores) {  // scores of +-300, whose own rounding in fp32 is 2e-5
  expect_like_reference({.causal = true,
                         .q = {.rows = 50, .first_token = 100, .amplitude = 10},
                         .kv = {{.rows = 150, .amplitude = 10}, {.rows = 9}}},
                        1e-4);
}

TEST_F(CpuBackwardTest, ScalesTheOutputGradientAndAddsToGradients) {
  expect_like_reference({.output_scale = 0.25f, .q = {.rows = 5}, .kv = {{.rows = 33}}});
  const BackwardCase backward({.q = {.rows = 5}, .kv = {{.rows = 33}}});
  const auto expect_doubled = [](const std::vector<float>& x, const std::vector<float>& y) {
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], x[i] == kGuard ? kGuard : 2 * x[i]);
  };
  on_every_target([&](const AttentionKernel& kernel) {
    const Gradients once = backward.run(kernel), twice = backward.run(kernel, 1, 2);
    expect_doubled(once.q, twice.q);
    expect_doubled(once.kv, twice.kv);
  });
}

TEST_F(CpuBackwardTest, TheProgressHookIsCalledBetweenPanelsAndInLongOnes) {
  int calls = 0;
  const std::function<void()> progress_hook = [&] { ++calls; };
  on_every_target([&](const AttentionKernel& kernel) {
    const auto run = [&](int64_t d) {
      calls = 0;
      BackwardCase({.head_dim = d,
                    .q = {.rows = 300},
                    .kv = {{.rows = 200}},
                    .progress_hook = &progress_hook})
          .run(kernel);
      return calls;
    };
    EXPECT_EQ(run(64), 2);       // panels of 128 keys
    EXPECT_EQ(run(256), 2 * 3);  // 128 queries have 32768 numbers
  });
}

TEST_F(CpuBackwardTest, NoWorkspaceIsAnError) {
  EXPECT_THROW(cpu_->attend_backward({}, {.head_dim = 64}, 1, {}), Error);  // no workspace
}

// Grids of segments, offsets, heads that share K/V heads.
TEST_F(CpuBackwardTest, DilatedBranchesWithTheSameBitsOnAnyThreads) {
  struct Shape {
    int64_t tokens, heads, kv_heads, w, r;
  };
  for (const Shape& s : {Shape{96, 4, 2, 32, 1},
                         {96, 6, 2, 48, 4},
                         {61, 5, 1, 61, 3},
                         {1300, 2, 1, 1300, 1},
                         {128, 12, 12, 64, 4}}) {
    constexpr int64_t d = 8;
    const int64_t rows = s.tokens * s.heads, kv_rows = 2 * s.tokens * s.kv_heads;
    Elements q(rows * d, DType::kFloat32), g = q, kv(kv_rows * d, DType::kFloat32);
    for (int64_t i = 0; i < rows; ++i) q.make_row(i * d, 1, i, d, 1), g.make_row(i * d, 2, i, d, 1);
    for (int64_t i = 0; i < kv_rows; ++i) kv.make_row(i * d, 3, i, d, 1);
    std::vector<float> statistics;
    for (int64_t i = 0; i < rows; ++i) statistics.insert(statistics.end(), {4.0f, 0.125f});
    const auto run = [&](const AttentionKernel& kernel, int threads) {
      Gradients out{std::vector<float>(q.fp32.size()), std::vector<float>(kv.fp32.size())};
      KvLists lists;
      const auto grids = backward_grids({.q = q.at(0),
                                         .k = kv.at(0),
                                         .v = kv.at(kv_rows / 2 * d),
                                         .o = out.q.data(),
                                         .lse = statistics.data(),
                                         .tokens = s.tokens,
                                         .heads = s.heads,
                                         .kv_heads = s.kv_heads,
                                         .head_dim = d,
                                         .element_bytes = 4},
                                        g.at(0), out.kv.data(), s.w, s.r, lists);
      const AttendOptions options{.head_dim = d};
      const PoisonedWorkspace workspace(kernel.backward_workspace_bytes(options, threads));
      kernel.attend_backward(grids, options, threads, workspace.bytes());
      return out;
    };
    const Gradients expected = run(*reference_, 1);
    on_every_target([&](const AttentionKernel& kernel) {
      const Gradients one = run(kernel, 1);
      EXPECT_LE(relative_error(one, expected), 1e-6) << s.w << " " << s.r;
      for (const int threads : {2, 4}) EXPECT_EQ(run(kernel, threads), one) << threads;
    });
  }
}

}  // namespace
}  // namespace longnet
