// The kernels of the cores against the reference, on every instruction set of the machine that they
// support.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "core/check.h"
#include "kernels/testing/attend_case.h"
#include "kernels/testing/cpu_kernels.h"

namespace longnet {
namespace {

TEST(AmxKernel, IsAmongTheTestedOrSaysWhyNot) {
  if (const std::string why = make_kernel("cpu_amx")->why_unsupported({}); !why.empty()) {
    EXPECT_THROW(make_kernel("cpu_amx")->attend({}, {}, 1, {}), Error);
    GTEST_SKIP() << why;
  }
  bool tested = false;
  on_every_target([&](const AttentionKernel& kernel) { tested |= kernel.name() == "cpu_amx"; });
  EXPECT_TRUE(tested);
}

class CpuKernelTest : public testing::Test {
 protected:
  // Both dtypes hold the same bits for both kernels, so one bound serves both, but where powers are
  // rounded.
  void expect_like_reference(const AttendSpec& spec, double tolerance = 1e-6) {
    const AttendCase attend(spec);
    const AttendResult expected = attend.run(*reference_);
    on_every_target([&](const AttentionKernel& kernel) {
      const AttendResult result = attend.run(kernel);
      EXPECT_LE(relative_error(result, expected),
                tolerance + rounding_of_probabilities(kernel, spec.dtype))
          << to_string(spec);
      EXPECT_LE(lse_error(result, expected), 10 * tolerance) << to_string(spec);
    });
  }

  void expect_like_reference_all_ways(const AttendSpec& all) {
    in_every_way(all, [&](const AttendSpec& spec) { expect_like_reference(spec); });
  }

  const std::unique_ptr<AttentionKernel> cpu_ = make_kernel("cpu");
  const std::unique_ptr<AttentionKernel> reference_ = make_kernel("reference");
};

// Tiles of scores have rows and keys, those of outputs rows and columns; along the third they loop.
TEST_F(CpuKernelTest, OddShapes) {
  const std::vector<int64_t> some{0, 1, 65, 200},
      keys{0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};
  for (const int64_t d : {8, 24, 48, 64, 80, 96, 128, 256}) {
    for (const int64_t rows : {0, 1, 2, 5, 7, 25}) {
      for (const int64_t n : d == 24 || d == 64 ? keys : some) {
        expect_like_reference_all_ways({.head_dim = d,
                                        .q = {.rows = rows, .first_token = n / 2, .gap = 7},
                                        .kv = {{.rows = n, .gap = d}}});
      }
    }
  }
}

TEST_F(CpuKernelTest, EveryHeadDim) {
  for (int64_t d = 8; d <= 256; d += 8) {
    expect_like_reference_all_ways(
        {.head_dim = d, .q = {.rows = 9, .first_token = 60}, .kv = {{.rows = 71}}});
  }
}

TEST_F(CpuKernelTest, ManyKeysAndRows) {  // borders of chunks (2064 rows) and of groups (4096 keys)
  for (const int64_t rows : {2063, 2064, 2065, 4140}) {
    expect_like_reference_all_ways({.head_dim = 24,
                                    .q = {.rows = rows, .first_token = 3},
                                    .kv = {{.rows = 60, .token_step = 35}}});
  }
  for (const int64_t keys : {1000, 4095, 4096, 4097, 8200}) {
    expect_like_reference_all_ways(
        {.q = {.rows = 3, .first_token = keys - 5, .token_step = 2}, .kv = {{.rows = keys}}});
  }
}

TEST_F(CpuKernelTest, SeveralRunsInAnyOrder) {
  const RunSpec q{.rows = 40, .first_token = 50, .token_step = 3, .gap = 64};
  // A zigzag: the late half before the early one, with empty runs between.
  expect_like_reference_all_ways(
      {.q = q, .kv = {{.rows = 0}, {.rows = 70, .first_token = 150}, {.rows = 0}, {.rows = 70}}});
  // Striped: four runs that interleave.
  std::vector<RunSpec> striped;
  for (int64_t i = 0; i < 4; ++i)
    striped.push_back({.rows = 45, .first_token = 3 - i, .token_step = 4});
  expect_like_reference_all_ways({.head_dim = 48, .q = q, .kv = striped});
  // More runs than a panel has keys, of one key each, descending.
  std::vector<RunSpec> single;
  for (int64_t i = 0; i < 150; ++i)
    single.push_back({.rows = 1, .first_token = 150 - i, .token_step = 0});
  expect_like_reference_all_ways({.head_dim = 8, .q = q, .kv = single});
  expect_like_reference_all_ways({.q = q, .kv = {{.rows = 0}, {.rows = 0}}});
  expect_like_reference_all_ways({.q = q, .kv = {}});
}

TEST_F(CpuKernelTest, CausalPositions) {
  const auto expect = [&](RunSpec q, std::vector<RunSpec> kv) {
    expect_like_reference({.causal = true, .q = q, .kv = std::move(kv)});
  };
  expect({.rows = 130}, {{.rows = 130}});
  expect({.rows = 30}, {{.rows = 30, .first_token = 100}});  // sees nothing
  expect({.rows = 60, .first_token = 80},
         {{.rows = 90, .first_token = 100}});  // some rows see nothing
  expect({.rows = 50, .first_token = 7, .token_step = 16},
         {{.rows = 50, .first_token = 3, .token_step = 16}});
  expect({.rows = 50, .token_step = int64_t{1} << 33},
         {{.rows = 99, .token_step = int64_t{1} << 32}});
  expect({.rows = 70, .first_token = 64}, {{.rows = 64}, {.rows = 64, .first_token = 64}});
  expect({.rows = 1, .first_token = 5, .token_step = 0}, {{.rows = 9}});
}

TEST_F(CpuKernelTest, RowsThatSeeNothingAreZeroAndMinusInfinity) {
  const AttendCase attend(
      {.head_dim = 24, .causal = true, .q = {.rows = 20}, .kv = {{.rows = 30, .first_token = 10}}});
  on_every_target([&](const AttentionKernel& kernel) {
    const AttendResult result = attend.run(kernel);
    for (size_t row = 0; row < 20; ++row) {
      EXPECT_EQ(result.lse[row] == -INFINITY, row < 10) << "row " << row;
      for (size_t c = 0; c < 24; ++c) EXPECT_EQ(result.o[row * 24 + c] == 0.0f, row < 10);
    }
  });
}

TEST_F(CpuKernelTest, ZerosGiveExactLse) {
  on_every_target([&](const AttentionKernel& kernel) {
    const AttendResult one =
        AttendCase({.q = {.rows = 3, .amplitude = 0}, .kv = {{.rows = 1}}}).run(kernel);
    EXPECT_EQ(one.lse, std::vector<float>(3, 0.0f));
    const AttendResult many =
        AttendCase({.q = {.rows = 3, .amplitude = 0}, .kv = {{.rows = 77}}}).run(kernel);
    for (const float lse : many.lse) EXPECT_FLOAT_EQ(lse, std::log(77.0f));
  });
}

TEST_F(CpuKernelTest, LargeScores) {
  // Dot products beyond +-60000: scores of +-7500, whose own rounding in fp32 is near 1e-3.
  for (const float amplitude : {10.0f, 30.0f, 50.0f}) {
    for (const bool causal : {false, true}) {
      expect_like_reference({.causal = causal,
                             .q = {.rows = 50, .first_token = 100, .amplitude = amplitude},
                             .kv = {{.rows = 150, .amplitude = amplitude}, {.rows = 9}}},
                            3e-3);
    }
  }
}

TEST_F(CpuKernelTest, MaximumThatRisesLateRescalesAllSums) {
  // 5000 keys with scores near 0 fill one closed group of sums and part of the next; then scores
  // beyond the lazy margin (16 ln 2 = 11) come, once and again.
  expect_like_reference({.q = {.rows = 30},
                         .kv = {{.rows = 5000, .amplitude = 0.01f},
                                {.rows = 60, .amplitude = 8},
                                {.rows = 60, .amplitude = 20}}},
                        3e-6);
}

TEST_F(CpuKernelTest, OutputScaleLeavesTheLseAlone) {
  on_every_target([&](const AttentionKernel& kernel) {
    const AttendSpec spec{.q = {.rows = 5}, .kv = {{.rows = 33}}};
    AttendSpec scaled = spec;
    scaled.output_scale = 0.25f;
    const AttendResult plain = AttendCase(spec).run(kernel),
                       quarter = AttendCase(scaled).run(kernel);
    EXPECT_EQ(quarter.lse, plain.lse);
    for (size_t i = 0; i < plain.o.size(); ++i) EXPECT_FLOAT_EQ(quarter.o[i], 0.25f * plain.o[i]);
  });
}

TEST_F(CpuKernelTest, KeysAddedTwiceCountTwice) {
  on_every_target([&](const AttentionKernel& kernel) {
    const AttendSpec spec{.q = {.rows = 5, .amplitude = 0}, .kv = {{.rows = 33}}};
    AttendSpec twice = spec;
    twice.kv.push_back(twice.kv.front());
    const AttendResult once = AttendCase(spec).run(kernel), both = AttendCase(twice).run(kernel);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(both.lse[i], once.lse[i] + std::log(2.0), 1e-6);
  });
}

TEST_F(CpuKernelTest, SameBitsOnAnyThreadsAndBesideAnyTasks) {
  on_every_target([&](const AttentionKernel& kernel) {
    std::vector<AttendCase> cases;
    for (int64_t i = 0; i < 9; ++i) {
      cases.emplace_back(AttendSpec{.causal = true,
                                    .q = {.rows = 13 * i, .first_token = 5},
                                    .kv = {{.rows = 40 * i}, {.rows = 11, .first_token = 2}}});
    }
    std::vector<AttendResult> alone;
    for (const AttendCase& attend : cases) alone.push_back(attend.run(kernel));
    for (const int threads : {1, 2, 3}) {
      EXPECT_EQ(AttendCase::run_all(cases, kernel, threads), alone) << threads;
    }
  });
}

TEST_F(CpuKernelTest, TheProgressHookIsCalledOncePerPanelOfKeysOnTheCallingThread) {
  on_every_target([&](const AttentionKernel& kernel) {
    int calls = 0;
    const auto caller = std::this_thread::get_id();
    const std::function<void()> progress_hook = [&] {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++calls;
    };
    const AttendCase attend(
        {.q = {.rows = 50}, .kv = {{.rows = 1000}}, .progress_hook = &progress_hook});
    attend.run(kernel);
    EXPECT_EQ(calls, 8);  // panels of 128 keys
    const std::vector<AttendCase> many(20, attend);
    calls = 0;
    AttendCase::run_all(many, kernel, 2);
    EXPECT_LE(calls, 20 * 8);
  });
}

TEST_F(CpuKernelTest, UnsupportedOptionsHaveAReason) {
  EXPECT_EQ(cpu_->why_unsupported({.head_dim = 64}), "");
  EXPECT_NE(cpu_->why_unsupported({.head_dim = 0}), "");
  EXPECT_NE(cpu_->why_unsupported({.head_dim = 20}), "");
  EXPECT_NE(cpu_->why_unsupported({.head_dim = 264}), "");
  EXPECT_THROW(cpu_->attend({}, {.head_dim = 20}, 1, {}), Error);
  EXPECT_THROW(cpu_->attend({}, {.head_dim = 64}, 1, {}), Error);  // no workspace
}

}  // namespace
}  // namespace longnet
