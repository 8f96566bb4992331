#include "kernels/cpu/machine_peak.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

#include "core/check.h"
#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/machine_peak.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 12 chains hide a latency of 4 cycles at 2 per cycle and fit into 16 registers. Returns the number
// of operations.
double run_multiply_adds(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> df;
  constexpr int kChains = 12;
  hn::Vec<decltype(df)> sum[kChains];
  const auto factor = hn::Set(df, sink[0]), term = hn::Set(df, sink[1]);
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(df, float(i));
  for (int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], factor, term);
  }
  auto total = hn::Zero(df);
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) total = hn::Add(total, sum[i]);
  sink[2] = hn::GetLane(hn::SumOfLanes(df, total));
  return 2.0 * kChains * double(hn::Lanes(df)) * double(rounds);
}

void run_update(float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  const hn::ScalableTag<float> df;
  const int64_t lanes = int64_t(hn::Lanes(df));
  const auto s = hn::Set(df, 0.5f);
  for (int64_t i = 0; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::MulAdd(s, hn::LoadU(df, b + i), hn::LoadU(df, a + i)), df, a + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {
namespace {

HWY_EXPORT(run_multiply_adds);
HWY_EXPORT(run_update);

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs body(thread, window) on all threads at once, `windows` times. Returns the seconds of each
// window, ascending.
template <class Body>
std::vector<double> sorted_windows(int threads, int windows, const Body& body) {
  std::vector<double> seconds(size_t(windows), 0.0);
  Clock::time_point start;
  std::barrier in_step(threads);
  const auto work = [&](int thread) {
    for (int window = 0; window < windows; ++window) {
      in_step.arrive_and_wait();
      if (thread == 0) start = Clock::now();
      body(thread, window);
      in_step.arrive_and_wait();
      if (thread == 0) seconds[size_t(window)] = seconds_since(start);
    }
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  others.clear();  // joins
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets())
    names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string simd_target() { return simd_targets().front(); }

std::string simd_text(const std::string& target) {
  return target.starts_with("AVX3") ? "AVX-512 (" + target + ")" : target;
}

ScopedSimdTarget::ScopedSimdTarget(const std::string& name) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    return;
  }
  throw UsageError(concat("instruction set '", name, "' is not available"));
}

ScopedSimdTarget::~ScopedSimdTarget() { hwy::SetSupportedTargetsForTest(0); }

double measure_fma_peak_flops(int threads, double seconds) {
  constexpr double kWindow_s = 1e-3;  // many threads' barriers are a small part of it
  float probe[3] = {0.999f, 0.001f, 0.0f};
  const auto start = Clock::now();
  double operations = 0;
  while (seconds_since(start) < 0.1 * seconds) {  // also lets the clock rise
    operations += HWY_DYNAMIC_DISPATCH(run_multiply_adds)(10000, probe);
  }
  const double per_round = HWY_DYNAMIC_DISPATCH(run_multiply_adds)(1, probe);
  const auto rounds = int64_t(operations / seconds_since(start) * kWindow_s / per_round) + 1;
  const int count = std::max(1, int(0.9 * seconds / kWindow_s));
  const std::vector<double> windows = sorted_windows(threads, count, [rounds](int, int) {
    float sink[3] = {0.999f, 0.001f, 0.0f};
    HWY_DYNAMIC_DISPATCH(run_multiply_adds)(rounds, sink);
  });
  return per_round * double(rounds) * threads / windows.front();
}

double peak_over_fma(std::string_view kernel, DType dtype) {
  if (kernel != "cpu_amx") return 1.0;
  return dtype == DType::kFloat32 ? 16.0 / 6 : 16.0;
}

double run_fma(int threads, double flops) {
  float probe[3] = {0.999f, 0.001f, 0.0f};
  const double per_round = HWY_DYNAMIC_DISPATCH(run_multiply_adds)(1, probe);
  const auto rounds = int64_t(flops / threads / per_round) + 1;
  parallel_for(threads, threads, [rounds](int64_t, int) {
    float sink[3] = {0.999f, 0.001f, 0.0f};
    HWY_DYNAMIC_DISPATCH(run_multiply_adds)(rounds, sink);
  });
  return per_round * double(rounds) * threads;
}

double measure_memory_bandwidth(int threads, int64_t array_bytes) {
  constexpr int kPasses = 3, kSlices = 24;
  const int64_t slice = array_bytes / int64_t(sizeof(float)) / threads / kSlices;
  std::vector<std::vector<float>> a(size_t(threads),
                                    std::vector<float>(size_t(slice * kSlices), 0.0f));
  std::vector<std::vector<float>> b = a;
  const std::vector<double> windows =
      sorted_windows(threads, kPasses * kSlices, [&](int thread, int window) {
        const int64_t at = window % kSlices * slice;
        HWY_DYNAMIC_DISPATCH(run_update)
        (a[size_t(thread)].data() + at, b[size_t(thread)].data() + at, slice);
      });
  return 3.0 * sizeof(float) * double(slice) * threads / windows[windows.size() / 4];
}

}  // namespace longnet
#endif  // HWY_ONCE
