// Compares makespans of this suite's simulator with SimGrid's, for all algorithms. A program of its
// own, because SimGrid and MPI do not go into one process.
//
//   simgrid_oracle [--json FILE] [--quick]
//
// Exits with 1 when they differ by more than 1e-6 where no two messages share a link, by more than
// 2 % where they do.
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>

#include "core/check.h"
#include "json/json_tree.h"
#include "schedule/registry.h"
#include "simgrid_oracle/simgrid_replay.h"
#include "simulate/closed_form_times.h"
#include "simulate/engine.h"

namespace longnet {
namespace {

constexpr double kUncontended = 1e-6, kContended = 0.02;

struct Case {
  std::string algorithm, collective, machine;
  ShardedProblem sharded;
  ClusterSpec cluster;
};

struct Errors {
  int cases = 0;
  double largest = 0;
  void add(double e) { ++cases, largest = std::max(largest, e); }
};

std::vector<std::pair<std::string, ClusterSpec>> machines() {
  const auto q = [](double v) { return Quantity{v, "test"}; };
  const TopologySpec tree{.kind = TopologyKind::kFatTree, .nodes_per_leaf = q(2), .taper = q(4)};
  const TopologySpec torus{
      .kind = TopologyKind::kTorus, .dimensions = {4, 4, 8}, .link_bytes_per_s = q(4e10)};
  return {
      {"switch", plain_cluster({.nodes = 128})},
      {"two cards a node, tapered tree",
       plain_cluster({.nodes = 128, .cards = 2, .topology = tree})},
      {"torus, in order",
       plain_cluster({.nodes = 128, .topology = torus, .execution = ExecutionKind::kInOrder})},
  };
}

ShardedProblem problem_of(const AlgorithmInfo& a, int ranks) {
  const int64_t n = 1 << 14;
  const int heads = a.collectives == CollectiveUse::kAllToAll ? std::max(16, ranks) : 16;
  const AttentionProblem p{.seq_len = n,
                           .num_heads = heads,
                           .num_kv_heads = heads,
                           .head_dim = 64,
                           .dtype = DType::kBFloat16};
  DilatedPattern pattern = dense_pattern(n);
  if (a.pattern == PatternKind::kDilated) pattern = {.branches = {{256, 1}, {2048, 8}, {n, 64}}};
  if (a.pattern == PatternKind::kSparse) pattern = sparse_pattern(128, 8);
  return {p, pattern, {n, ranks}};
}

std::vector<std::string> collectives_of(const AlgorithmInfo& a) {
  if (a.collectives == CollectiveUse::kNone) return {"ring"};
  return lowerings_of(a.collectives);
}

// True where the number of messages is not P squared, for which SimGrid would take minutes.
bool has_few_messages(const Schedule& schedule, const CollectiveChoice& choice) {
  if (choice.reduce_scatter == ReduceScatterAlgorithm::kRecursiveHalving) return true;
  return choice.all_gather != AllGatherAlgorithm::kRing &&
         std::ranges::none_of(schedule.program(0).ops, [](const Op& op) {
           return std::holds_alternative<ReduceScatter>(op.what);
         });
}

std::vector<Case> cases(bool quick) {
  std::vector<Case> out;
  for (const auto& [machine, cluster] : machines())
    for (const AlgorithmInfo& a : algorithms())
      for (const int ranks : {1, 2, 3, 8, 16, 32, 64, 512}) {
        if (quick && ranks > 16) continue;
        for (const std::string& collective : collectives_of(a)) {
          if (ranks > 16 && cluster.execution == ExecutionKind::kInOrder) continue;
          const ShardedProblem s = problem_of(a, ranks);
          if (!a.why_no_program(s).empty()) continue;
          if (ranks == 512 && (machine != "switch" || a.collectives != CollectiveUse::kAllGather ||
                               !has_few_messages(a.make(s), parse_collective(collective))))
            continue;
          out.push_back({std::string(a.name), collective, machine, s, cluster});
        }
      }
  return out;
}

JsonNode node_of(const Errors& e, double allowed) {
  JsonNode n = JsonNode::object();
  n.set("cases", e.cases).set("max_rel_error", e.cases > 0 ? JsonNode(e.largest) : JsonNode());
  return n.set("allowed", allowed);
}

int run(const std::string& json, bool quick) {
  Errors uncontended, contended;
  JsonNode list = JsonNode::array();
  std::cout << "# algorithm  ranks  collective  ours_s  simgrid_s  rel_error  messages  machine\n";
  for (const Case& c : cases(quick)) {
    const int ranks = c.sharded.layout.world_size();
    const Schedule schedule = find_algorithm(c.algorithm).make(c.sharded);
    const ProgramSet programs = compile(schedule, Twins{ranks, ranks}, c.cluster,
                                        plan_collectives(c.cluster, c.collective, ranks));
    const Topology topology(c.cluster, ranks);
    const SimulatedRun ours =
        simulate(programs, topology, c.cluster, {.alpha = AlphaSet::kIdeal, .collapse = false});
    const double theirs = simgrid_makespan(programs, topology, c.cluster.execution);
    const double error = std::abs(ours.makespan_s - theirs) / theirs;
    (ours.shared_messages == 0 ? uncontended : contended).add(error);
    std::cout << std::left << std::setw(19) << c.algorithm << std::setw(5) << ranks << std::setw(20)
              << c.collective << std::setprecision(10) << std::setw(17) << ours.makespan_s
              << std::setw(17) << theirs << std::setprecision(3) << std::setw(11) << error
              << std::setw(8) << ours.messages << c.machine << "\n";
    JsonNode n = JsonNode::object();
    n.set("algorithm", c.algorithm).set("ranks", ranks).set("collective", c.collective);
    n.set("machine", c.machine).set("ours_s", ours.makespan_s).set("simgrid_s", theirs);
    list.push(n.set("rel_error", error).set("contended", ours.shared_messages > 0));
  }
  std::cout << "# uncontended: " << uncontended.cases << " cases, error at most "
            << uncontended.largest << "; contended: " << contended.cases << ", "
            << contended.largest << "\n";
  if (!json.empty()) {
    JsonNode root = JsonNode::object();
    root.set("uncontended", node_of(uncontended, kUncontended));
    root.set("contended", node_of(contended, kContended)).set("cases", list);
    std::ofstream file(json);
    file << dump_json(root, 1) << "\n";
    check(bool(file.flush()), "cannot write ", json);
  }
  check(uncontended.cases > 0 && contended.cases > 0, "no cases");
  return uncontended.largest <= kUncontended && contended.largest <= kContended ? 0 : 1;
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) {
  std::string json;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") quick = true;
    if (word == "--json" && i + 1 < argc) json = argv[++i];
  }
  try {
    return longnet::run(json, quick);
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\n";
    return 3;
  }
}
