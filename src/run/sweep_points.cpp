#include "run/sweep_points.h"

#include "comm/cuda/device_transport.h"
#include "core/check.h"
#include "io/expand.h"
#include "kernels/attention_kernel.h"
#include "kernels/cuda/device_kernel.h"
#include "run/backend.h"
#include "run/point_schedule.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"
#include "simulate/cluster.h"
#include "simulate/collective_model.h"

namespace longnet {

KnownNames known_names() {
  KnownNames known;
  known.dilated_algorithms.clear();
  known.sparse_algorithms.clear();
  for (const AlgorithmInfo& a : algorithms()) {
    const std::string name(a.name);
    known.algorithms.push_back(name);
    if (a.pattern == PatternKind::kDilated) known.dilated_algorithms.push_back(name);
    if (a.pattern == PatternKind::kSparse) known.sparse_algorithms.push_back(name);
  }
  known.kernels = kernel_names();
  for (const std::string& name : device_kernel_names()) known.kernels.push_back(name);
  known.layouts = {"contiguous", "zigzag", "striped"};
  known.collectives = collective_names();
  known.collectives.insert(known.collectives.end(), formula_names().begin(), formula_names().end());
  for (const AlgorithmInfo& a : algorithms()) {
    auto& names = known.collectives_of[std::string(a.name)];
    names = {"native"};
    if (a.collectives == CollectiveUse::kAllGather) {
      names.insert(names.end(), {"ring", "recursive_doubling", "bruck", "hierarchical"});
      names.insert(names.end(), formula_names().begin(), formula_names().end());
    }
    if (a.collectives == CollectiveUse::kAllToAll)
      names.insert(names.end(), {"pairwise", "linear"});
  }
  known.why_bad_what_if = [](const std::string& text) -> std::string {
    try {
      parse_what_if(text);
      return {};
    } catch (const UsageError& e) {
      return e.what();
    }
  };
  return known;
}

Config read_config(const SweepRequest& request) {
  std::vector<std::string> overrides = request.sets;
  if (!request.transport.empty()) overrides.push_back("run.transport=" + request.transport);
  Config config = load_config(request.config, {.overrides = overrides, .known = known_names()});
  // No launcher decides how many virtual ranks there are.
  if (config.run.transport == "virtual" && request.ranks > 0)
    config.sweep.ranks = {.values = {request.ranks}};
  return config;
}

std::string transport_of(const Config& config, const std::string& launched) {
  if (config.run.transport != "virtual") return launched;
  if (launched == "mpi")
    throw UsageError("virtual ranks are walked by one process\n  hint: start it without mpirun");
  return "virtual";
}

std::vector<Point> read_points(const Config& config, const std::string& filter, int world_size,
                               const std::string& transport, bool limit_ranks) {
  return expand(config, {.world_size = world_size,
                         .max_ranks = limit_ranks ? world_size : 0,
                         .filter = filter,
                         .transport = transport,
                         .known = known_names(),
                         .resolve = resolve_options});
}

void require_fitting_transport(const Config& config, const std::vector<Point>& points) {
  if (!is_device_transport(config.run.transport)) return;
  for (const Point& point : points)
    if (!backend_of(point.params.kernel).on_gpu())
      throw UsageError(concat("transport ", config.run.transport,
                              " moves the memory of GPUs, and kernel ", point.params.kernel,
                              " works on the CPU\n  hint: --set run.kernel=cuda, or leave "
                              "the transport out"));
}

}  // namespace longnet
