// Messages a second that the simulator handles where they share links: every rank simulated, and
// ranks that do the same simulated once (merged), as `lnbench simulate` does.
//
//   simulate_benchmark [--benchmark_filter=ring]
//
// Nodes of four GPUs with two cards, leaves of two nodes, a taper of 4: four flows share a leaf's
// link, two a card. messages_per_s counts messages of all ranks, per second of one core; shared:
// the part of them that others can slow.
#include <benchmark/benchmark.h>

#include "schedule/registry.h"
#include "simulate/closed_form_times.h"
#include "simulate/engine.h"

namespace longnet {
namespace {

struct Row {
  const char *algorithm, *collective;
  int ranks;
};

// One set of K/V heads a rank where heads are exchanged, one of all else.
ShardedProblem problem_of(const Row& row, const AlgorithmInfo& algorithm) {
  const int64_t n = 1 << 14;
  const int heads = algorithm.collectives == CollectiveUse::kAllToAll ? row.ranks : 16;
  return {{.seq_len = n, .num_heads = heads, .num_kv_heads = heads, .dtype = DType::kBFloat16},
          dense_pattern(n),
          {n, row.ranks}};
}

void run(benchmark::State& state, const Row& row, bool merged) {
  const auto q = [](double v) { return Quantity{v, "chosen"}; };
  const ClusterSpec cluster = plain_cluster(
      {.nodes = row.ranks / 4,
       .cards = 2,
       .topology = {.kind = TopologyKind::kFatTree, .nodes_per_leaf = q(2), .taper = q(4)}});
  const AlgorithmInfo& algorithm = find_algorithm(row.algorithm);
  const Schedule schedule = algorithm.make(problem_of(row, algorithm));
  const CollectivePlan plan = plan_collectives(cluster, row.collective, row.ranks);
  const Twins twins = lowered_twins(schedule, algorithm.period(schedule.sharded), plan, cluster);
  const ProgramSet programs = compile(schedule, twins, cluster, plan);
  const Topology topology(cluster, row.ranks);
  double seconds = 0, messages = 0, shared = 0;
  for (auto _ : state) {
    const SimulatedRun run = simulate(programs, topology, cluster, {.collapse = merged});
    const double alike = double(row.ranks) / double(run.ranks.size());
    seconds += run.cpu_s;
    messages += alike * double(run.messages);
    shared += alike * double(run.shared_messages);
  }
  state.counters["messages"] = messages / double(state.iterations());
  state.counters["messages_per_s"] = messages / seconds;
  state.counters["shared"] = shared / messages;
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) {
  using longnet::Row;
  for (const Row row : {Row{"double_ring", "ring", 512}, Row{"usp", "pairwise", 512},
                        Row{"ulysses", "pairwise", 256}, Row{"all_gather", "ring", 512},
                        Row{"all_gather", "recursive_doubling", 4096},
                        Row{"all_gather", "bruck", 4096}, Row{"ulysses", "linear", 128}})
    for (const bool merged : {false, true})
      benchmark::RegisterBenchmark(
          (std::string(row.algorithm) + "/" + row.collective + "/" + std::to_string(row.ranks) +
           (merged ? "/merged" : ""))
              .c_str(),
          [row, merged](benchmark::State& state) { longnet::run(state, row, merged); })
          ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
