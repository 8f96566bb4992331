#include "run/sweep_points.h"

#include "comm/cuda/device_transport.h"
#include "core/check.h"
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
  const auto add = [](std::vector<std::string>& names, const auto& more) {
    names.insert(names.end(), more.begin(), more.end());
  };
  add(known.names["kernel"], kernel_names());
  add(known.names["kernel"], device_kernel_names());
  known.names["layout"] = {"contiguous", "zigzag", "striped"};
  add(known.names["collective"], collective_names());
  add(known.names["collective"], formula_names());
  for (const AlgorithmInfo& a : algorithms()) {
    const std::string name(a.name);
    known.names["algorithm"].push_back(name);
    known.patterns[name] = a.pattern;
    auto& names = known.collectives_of[name];
    if (a.collectives == CollectiveUse::kAllGather) {
      names = {"ring", "recursive_doubling", "bruck", "hierarchical"};
      add(names, formula_names());
    }
    if (a.collectives == CollectiveUse::kAllToAll) names = {"pairwise", "linear"};
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
  if (!request.mode.empty()) overrides.push_back("run.mode=" + request.mode);
  if (!request.transport.empty()) overrides.push_back("run.transport=" + request.transport);
  Config config = load_config(request.config, {.overrides = overrides, .known = known_names()});
  // No launcher decides how many virtual ranks there are.
  if (config.run.mode == Mode::kVirtual && request.ranks > 0)
    config.sweep.axes["ranks"] = {.values = {request.ranks}};
  return config;
}

std::string transport_of(const Config& config, const std::string& launched) {
  if (config.run.mode != Mode::kVirtual) return launched;
  if (launched == "mpi")
    throw UsageError("virtual ranks are walked by one process\n  hint: start it without mpirun");
  return "";
}

std::vector<Point> read_points(const Config& config, ExpandOptions options) {
  options.known = known_names();
  options.resolve = resolve_options;
  return expand(config, options);
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
