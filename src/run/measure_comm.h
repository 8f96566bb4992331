// Times whole operations between ranks, of growing sizes, in the terms of nccl-tests
// (doc/PERFORMANCE.md there): algorithm bandwidth = size / time, where size is what one rank has
// after a gather (or gives to an exchange); bus bandwidth = algorithm bandwidth * (P - 1) / P, the
// rate of the links whatever P is; for two ranks that exchange messages both are the same.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "comm/comm_operations.h"
#include "json/json_tree.h"
#include "measure/sampler.h"

namespace longnet {

struct CommRow {
  CommOperation operation{};
  int64_t bytes = 0;
  int repeats = 1;      // operations per sample
  SampleSet samples{};  // `repeats` operations each; empty: none within the time budget
  double bus = 1;       // bus over algorithm bandwidth
  bool timed() const { return !samples.samples_s.empty(); }
  double seconds() const { return samples.interval.median / repeats; }
  double algorithm_bytes_per_s() const { return double(bytes) / seconds(); }
  double bus_bytes_per_s() const { return algorithm_bytes_per_s() * bus; }
};
JsonNode to_json(const CommRow& row);

// Returns why these ranks cannot move `max_bytes` on a machine that has so many of them and so much
// memory; "" when they can.
std::string why_no_room(int64_t max_bytes, int world_size, int ranks_here, double memory_bytes);

inline constexpr SampleOptions kCommSampling{
    .warmup = 3,  // a first message to a peer sets up its connection
    .min_samples = 10,
    .max_samples = 40,
    .target_ci = 0.05,
    .time_budget_s = 5};

struct CommHooks {
  std::function<void(const std::string& what)> begin = [](const std::string&) {};
  std::function<void(const CommRow&)> end = [](const CommRow&) {};
};

// Times every operation in sizes from the smallest to `max_bytes`, each four times the one before.
// Each is first run once on known data: throws Error on the rank where wrong bytes arrive.
// Collective.
std::vector<CommRow> measure_comm(CommOperations& operations, int64_t max_bytes,
                                  const CommHooks& hooks,
                                  const SampleOptions& sampling = kCommSampling);

}  // namespace longnet
