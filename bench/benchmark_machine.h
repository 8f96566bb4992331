// Shared by the benchmarks of kernels: the machine's peaks, times of one thread, ratios to work
// that runs in turn with what is measured.
#pragma once
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/machine_peak.h"

namespace longnet {

struct Machine {
  int cores = 1;
  std::map<std::string, double> flops_per_core;  // by instruction set, one thread
  double flops_all = 0;                          // best instruction set, all cores
  double bandwidth_per_core = 0;                 // bytes per second, one thread
};

inline Machine measure_machine() {
  Machine machine;
  machine.cores = std::max(1, int(std::thread::hardware_concurrency()));
  for (const std::string& target : simd_targets()) {
    const ScopedSimdTarget use(target);
    machine.flops_per_core[target] = measure_fma_peak_flops(1, 0.3);
  }
  machine.flops_all = measure_fma_peak_flops(machine.cores, 0.5);
  machine.bandwidth_per_core = measure_memory_bandwidth(1);
  return machine;
}

// CPU time of this thread: a wall clock would count other processes into either side of the ratio.
template <class Body>
double seconds_of(const Body& body) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  };
  const double start = now();
  body();
  return now() - start;
}

// The share that each iteration has of what the same thread reaches right after it.
class InterleavedShares {
 public:
  void add(double share) { shares_.push_back(share); }
  // Counters `name`_p50 and `name`_p90.
  void report(benchmark::State& state, const std::string& name) {
    std::sort(shares_.begin(), shares_.end());
    if (shares_.empty()) return;
    state.counters[name + "_p50"] = shares_[shares_.size() / 2];
    state.counters[name + "_p90"] = shares_[shares_.size() * 9 / 10];
  }

 private:
  std::vector<double> shares_;
};

// Runs `body` of `flops` operations in each iteration; on one thread beside multiply-adds.
template <class Body>
void run_beside_fma(benchmark::State& state, double flops, int threads, double peak,
                    const Body& body) {
  InterleavedShares shares;
  for (auto _ : state) {
    const double seconds = seconds_of(body);
    if (threads > 1) continue;
    state.PauseTiming();
    double done = 0;
    const double fma_seconds = seconds_of([&] { done = run_fma(1, flops / 2); });
    shares.add(flops / seconds / (done / fma_seconds));
    state.ResumeTiming();
  }
  shares.report(state, "interleaved");
  using Counter = benchmark::Counter;
  state.counters["gflops"] = Counter(flops * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] = Counter(flops / peak, Counter::kIsIterationInvariantRate);
}

inline void count_bytes(benchmark::State& state, int64_t bytes, const Machine& machine) {
  state.SetBytesProcessed(bytes * state.iterations());
  state.counters["share_of_bandwidth"] = benchmark::Counter(
      double(bytes) / machine.bandwidth_per_core, benchmark::Counter::kIsIterationInvariantRate);
}

inline double smallest(const std::vector<double>& x) {
  return *std::min_element(x.begin(), x.end());
}
inline double largest(const std::vector<double>& x) {
  return *std::max_element(x.begin(), x.end());
}

template <class Body>
benchmark::internal::Benchmark* add_benchmark(const std::string& name, const Body& body) {
  return benchmark::RegisterBenchmark(name.c_str(), body)
      ->Unit(benchmark::kMicrosecond)
      ->ComputeStatistics("min", smallest)
      ->ComputeStatistics("max", largest);
}

// model_kernels_benchmark.cpp
void register_model_kernels(const Machine& machine);

}  // namespace longnet
