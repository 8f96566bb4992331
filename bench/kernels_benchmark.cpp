// Speed of the cpu kernels (attention, its backward pass, merge, add, reset, pack; those of a
// model's layers) and of the row worker beside the machine's peaks.
//
//   kernels_benchmark --benchmark_filter=attend/fp32 --benchmark_out=kernels.json
//
// attend            gflops: 4 * d operations per visible (query, key) pair, and nothing else.
//                   share_of_peak: of the multiply-add peak of the same instruction set and number
//                   of threads, measured in this process before the benchmarks run. `stride` counts
//                   heads: rows lie stride * d elements apart (12: a [tokens][12][d] tensor; 16:
//                   r = 16 of one head). interleaved_p50, _p90: percentiles of the share of the
//                   peak that the same thread reaches right after each iteration; of several
//                   threads, which share the work unevenly, there are none.
// backward          the same of the backward pass: 10 * d operations per visible pair.
// attend/cpu_amx, backward/cpu_amx
//                   the same of the kernel cpu_amx, where the machine has it. The peak is that of
//                   multiply-adds, which tiles exceed: a share may be above 1.
// merge, add, reset, pack
//                   bytes_per_second: every byte read once and written once. share_of_bandwidth: of
//                   the memory bandwidth on one thread; above 1 for sizes that stay in caches.
// gemm, rows         of a model's layers, see model_kernels_benchmark.cpp.
// fill, fill_and_digest, summarize
//                   work of a virtual walk beside attending; items_per_second counts values.
//
// Rates are per second of CPU time of the main thread, also with several threads, of which it is
// one: other processes cost only the caches that they take. Repetitions report median, min and max:
// on a shared machine read the min of times and the max of shares.
#include <benchmark/benchmark.h>

#include <vector>

#include "attend_setup.h"
#include "benchmark_machine.h"
#include "core/check.h"
#include "kernels/attention_kernel.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/row_worker.h"

namespace longnet {
namespace {

std::string name_of(const AttendPoint& p) {
  std::string name =
      concat(p.backward ? "backward/" : "attend/", p.kernel == "cpu" ? "" : p.kernel + "/",
             to_string(p.dtype), "/d:", p.head_dim, "/rows:", p.rows, "/stride:", p.stride,
             "/causal:", int(p.causal));
  if (p.segments > 1) name += concat("/tasks:", p.segments);
  if (!p.target.empty()) name += "/simd:" + p.target;
  return name + concat("/threads:", p.threads);
}

double flops_of(const AttendPoint& p) {
  const double n = double(p.rows), pairs = p.causal ? n * (n + 1) / 2 : n * n;
  return (p.backward ? 10.0 : 4.0) * double(p.head_dim) * pairs * double(p.segments);
}

void run_attend(benchmark::State& state, const AttendPoint& p, const Machine& machine) {
  const std::string target = p.target.empty() ? simd_target() : p.target;
  const ScopedSimdTarget use(target);
  AttendSetup setup(p);
  const double peak = p.threads == 1 ? machine.flops_per_core.at(target) : machine.flops_all;
  run_beside_fma(state, flops_of(p), p.threads, peak, [&] { setup.run(); });
  state.SetComplexityN(p.rows * p.segments);
}

void run_merge(benchmark::State& state, int64_t rows, MergeRule rule, const Machine& machine) {
  constexpr int64_t kDim = 64;
  const auto kernel = make_kernel("cpu");
  std::vector<float> from(size_t(rows * kDim), 1.0f), into = from, from_lse(size_t(rows), 2.0f);
  std::vector<float> into_lse(size_t(rows), 2.5f);
  const MergeTask task{.from = {from.data(), from_lse.data(), kDim, 1},
                       .into = {into.data(), into_lse.data(), kDim, 1},
                       .rows = rows};
  for (auto _ : state) kernel->merge({&task, 1}, rule, {.head_dim = kDim}, 1);
  count_bytes(state, rows * 3 * (kDim + 1) * int64_t(sizeof(float)), machine);  // 2 read, 1 written
}

void run_add(benchmark::State& state, int64_t rows, int threads, const Machine& machine) {
  constexpr int64_t kDim = 64;
  const auto kernel = make_kernel("cpu");
  std::vector<float> from(size_t(rows * kDim), 1.0f), into = from;
  const SumTask task{{from.data(), into.data(), kDim, kDim, rows}};
  for (auto _ : state) kernel->add({&task, 1}, {.head_dim = kDim}, threads);
  count_bytes(state, rows * 3 * kDim * int64_t(sizeof(float)), machine);  // 2 read, 1 written
}

void run_reset(benchmark::State& state, int64_t floats, int threads, const Machine& machine) {
  const auto kernel = make_kernel("cpu");
  std::vector<float> values(static_cast<size_t>(floats));
  const std::span<float> range(values);
  for (auto _ : state) kernel->fill({&range, 1}, 0.0f, threads);
  count_bytes(state, floats * int64_t(sizeof(float)), machine);
}

void run_pack(benchmark::State& state, int64_t rows, int64_t stride, DType dtype,
              const Machine& machine) {
  constexpr int64_t kDim = 64;
  const auto kernel = make_kernel("cpu");
  const int64_t row_bytes = kDim * dtype_bytes(dtype);
  std::vector<std::byte> from(size_t(rows * stride * row_bytes)), into(size_t(rows * row_bytes));
  const PackTask task{.from = from.data(),
                      .into = into.data(),
                      .from_stride = stride * kDim,
                      .into_stride = kDim,
                      .rows = rows};
  for (auto _ : state) {
    kernel->pack({&task, 1}, Conversion::kNone, {.head_dim = kDim, .dtype = dtype}, 1);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * rows * row_bytes, machine);
}

// Work of a virtual walk beside attending, in values per second: the generator, with or without the
// digest of its rows, and the sums and digest of an output.
void run_fill(benchmark::State& state, DType dtype, bool digest) {
  constexpr int64_t kDim = 64, kRows = 65536;
  const auto worker = make_cpu_row_worker();
  std::vector<std::byte> rows(size_t(kRows * kDim * dtype_bytes(dtype)));
  const FillRows task{.rows = kRows, .out = rows.data(), .row_stride = kDim};
  uint64_t sum = 0;
  for (auto _ : state) {
    worker->fill({&task, 1}, {.head_dim = kDim, .dtype = dtype}, 1, digest ? &sum : nullptr);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(kRows * kDim * state.iterations());
}

void run_summarize(benchmark::State& state) {
  constexpr int64_t kDim = 64, kRows = 65536;
  const auto worker = make_cpu_row_worker();
  const std::vector<float> o(size_t(kRows * kDim), 0.5f), lse(size_t(kRows), 1.0f);
  const OutputRows task{
      .o = o.data(), .lse = lse.data(), .o_stride = kDim, .lse_stride = 1, .rows = kRows};
  OutputSummary summary;
  for (auto _ : state) worker->summarize({&task, 1}, kDim, 1, {&summary, 1});
  state.SetItemsProcessed(kRows * kDim * state.iterations());
}

std::vector<AttendPoint> attend_points(const Machine& machine) {
  std::vector<AttendPoint> points;
  const DType fp32 = DType::kFloat32, bf16 = DType::kBFloat16;
  for (const DType dtype : {fp32, bf16}) {
    for (const int64_t stride : {1, 12, 16}) points.push_back({.dtype = dtype, .stride = stride});
    points.push_back({.dtype = dtype, .causal = true});
  }
  for (const int64_t d : {24, 48, 80, 96, 128, 256}) points.push_back({.head_dim = d});
  for (const int64_t rows : {64, 256, 1024}) points.push_back({.rows = rows});
  points.push_back({.head_dim = 128, .causal = true});
  for (const std::string& target : simd_targets()) {
    if (target == simd_target() || target == "SCALAR") continue;
    points.push_back({.target = target});
    points.push_back({.dtype = bf16, .target = target});
    points.push_back({.stride = 12, .target = target});
    points.push_back({.causal = true, .target = target});
    points.push_back({.head_dim = 128, .target = target});
  }
  if (machine.cores > 1)
    points.push_back({.segments = 4 * int64_t{machine.cores}, .threads = machine.cores});
  if (make_kernel("cpu_amx")->why_unsupported({}).empty())
    for (const DType dtype : {fp32, bf16})
      for (const int64_t d : {64, 128})
        for (const bool causal : {false, true})
          points.push_back({.dtype = dtype, .head_dim = d, .causal = causal, .kernel = "cpu_amx"});
  for (size_t i = 0, forward = points.size(); i < forward; ++i) {
    points.push_back(points[i]);
    points.back().backward = true;
  }
  return points;
}

void register_complexity(const Machine& machine) {
  add_benchmark(
      "attend/vanilla",
      [&machine](benchmark::State& state) { run_attend(state, {.rows = state.range(0)}, machine); })
      ->ArgName("seq_len")
      ->RangeMultiplier(2)
      ->Range(1024, 8192)
      ->Complexity(benchmark::oNSquared);
  // Segments of 2048 tokens at dilation rate 4: 512 rows each, 4 rows apart.
  add_benchmark("attend/dilated/w:2048/r:4",
                [&machine](benchmark::State& state) {
                  run_attend(state, {.rows = 512, .stride = 4, .segments = state.range(0) / 2048},
                             machine);
                  state.SetComplexityN(state.range(0));
                })
      ->ArgName("seq_len")
      ->RangeMultiplier(2)
      ->Range(8192, 131072)
      ->Complexity(benchmark::oN);
}

void register_rows(const Machine& machine) {
  for (const int64_t rows : {2048, 262144}) {
    for (const MergeRule rule : {MergeRule::kLse, MergeRule::kSum}) {
      add_benchmark(
          concat("merge/", rule == MergeRule::kLse ? "lse" : "sum", "/d:64/rows:", rows),
          [=, &machine](benchmark::State& state) { run_merge(state, rows, rule, machine); });
    }
  }
  for (const int threads : {1, machine.cores}) {
    constexpr int64_t kRows = 262144;
    add_benchmark(
        concat("add/d:64/rows:", kRows, "/threads:", threads),
        [=, &machine](benchmark::State& state) { run_add(state, kRows, threads, machine); });
    add_benchmark(
        concat("reset/floats:", kRows * 64, "/threads:", threads),
        [=, &machine](benchmark::State& state) { run_reset(state, kRows * 64, threads, machine); });
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t stride : {1, 12, 48}) {
      constexpr int64_t kRows = 65536;
      add_benchmark(concat("pack/", to_string(dtype), "/d:64/rows:", kRows, "/stride:", stride),
                    [=, &machine](benchmark::State& state) {
                      run_pack(state, kRows, stride, dtype, machine);
                    });
    }
  }
}

void register_walk() {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const bool digest : {false, true})
      add_benchmark(concat(digest ? "fill_and_digest/" : "fill/", to_string(dtype), "/d:64"),
                    [=](benchmark::State& state) { run_fill(state, dtype, digest); });
  add_benchmark("summarize/d:64", run_summarize);
}

void register_all(const Machine& machine) {
  for (const auto& [target, flops] : machine.flops_per_core) {
    add_benchmark(concat("machine/fma_peak/simd:", target, "/threads:1"),
                  [&machine, target](benchmark::State& state) {
                    const ScopedSimdTarget use(target);
                    for (auto _ : state)
                      state.counters["gflops"] = measure_fma_peak_flops(1, 0.2) * 1e-9;
                    state.counters["share_of_peak"] =
                        state.counters["gflops"] / machine.flops_per_core.at(target) * 1e9;
                  })
        ->Iterations(1);
  }
  for (const int threads : {1, machine.cores}) {
    add_benchmark(concat("machine/memory_bandwidth/threads:", threads),
                  [threads](benchmark::State& state) {
                    for (auto _ : state)
                      state.counters["bytes_per_second"] = measure_memory_bandwidth(threads);
                  })
        ->Iterations(1);
  }
  for (const AttendPoint& p : attend_points(machine)) {
    add_benchmark(name_of(p),
                  [p, &machine](benchmark::State& state) { run_attend(state, p, machine); });
  }
  register_complexity(machine);
  register_rows(machine);
  register_walk();
  register_model_kernels(machine);
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) {
  // Defaults for a run of about a minute; what the user gives comes later and wins.
  std::vector<std::string> defaults = {"--benchmark_min_time=0.1", "--benchmark_repetitions=5",
                                       "--benchmark_report_aggregates_only=true"};
  std::vector<char*> arguments = {argv[0]};
  for (std::string& flag : defaults) arguments.push_back(flag.data());
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = int(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  const longnet::Machine machine = longnet::measure_machine();
  for (const auto& [target, flops] : machine.flops_per_core) {
    benchmark::AddCustomContext("fma_peak_gflops_" + target, longnet::concat(flops * 1e-9));
  }
  benchmark::AddCustomContext("memory_gbytes_per_second",
                              longnet::concat(machine.bandwidth_per_core * 1e-9));
  benchmark::AddCustomContext("simd_target", longnet::simd_target());
  longnet::register_all(machine);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
