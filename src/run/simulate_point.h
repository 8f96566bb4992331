// The record of one point on a modelled cluster.
#pragma once
#include <limits>
#include <optional>
#include <string>

#include "run/plan_point.h"
#include "simulate/engine.h"

namespace longnet {

struct SimulatePoint {
  ClusterSpec cluster;  // already changed by `what_if`
  WhatIf what_if{};
  double memory_fraction = 0.9;     // share of the device's memory that a point may use
  std::optional<AlphaSet> alpha{};  // nothing: all three, as a band
  bool collapse = true;
  bool communication_alone = true;  // simulate that too, for the phases
  int64_t max_program_bytes = int64_t{4} << 30;
  double most_cpu_s =
      std::numeric_limits<double>::infinity();  // a point one of whose runs takes longer is skipped
};

struct SimulatedPoint {
  PointRecord record;
  SimulatedRun run{};       // the one that the median is of; with a timeline where that is small
  double simulation_s = 0;  // CPU time of all simulations of this point
  int64_t messages = 0, shared_messages = 0;  // in all of these (SimulatedRun)
  uint64_t program = 0;                       // fingerprint of what the ranks did
};

// The points of a config on a cluster: mode "simulated", kernel "modelled", its name in
// params.cluster, and ids accordingly; those that cannot run there are skipped with a reason.
std::vector<Point> on_cluster(const std::vector<Point>& points, const SimulatePoint& options);
std::vector<Point> on_cluster(const Config& config, const SimulatePoint& options,
                              const std::string& filter = "");

// Why a point cannot have these slow ranks: "there is no rank 8 of 8"; "": it can.
std::string why_no_straggler(const Straggler& straggler, const PointParams& params);

// Simulates one of the replicas of attention (PointParams), as ranks 0, 1, ... of the cluster: they
// do the same work and exchange nothing; and all ranks of a model or a layer. FLOPs, their rate and
// share of the peak are of all ranks together; seconds, bytes, messages and memory are those of one
// group. Contention between groups of one node on shared links is not modelled.
//
// The median is of the latencies in the middle of the band (NCCL's LL); the interval is the band.
// `timeline`: keep it whatever its size.
SimulatedPoint simulate_point(const Point& point, const SimulatePoint& options,
                              bool timeline = false);

// Points to simulate at the same time (core/work_ahead.h): as many as there are usable cores, and
// memory for two times `max_program_bytes` each, programs and what simulates them; at least one.
int simulation_threads(const SimulatePoint& options);

// Returns the run as a trace for Chrome and Perfetto: a process per rank, a thread per lane.
std::string chrome_trace(const SimulatedRun& run, const std::string& title);

}  // namespace longnet
