#include "simulate/closed_form_times.h"

#include "schedule/registry.h"
#include "simulate/engine.h"

namespace longnet {
namespace {

constexpr double kAlpha = 1e-6, kBeta = 4e11, kInterAlpha = 2e-6, kInterBeta = 5e10;
constexpr int64_t kTokens = 8192, kHeads = 8, kDim = 64, kBytes = 2;
constexpr double kSpeed = 1e14, kMemory = 1e12;  // plain_cluster's FLOP/s and bytes/s

double time_of(const ProgramSet& programs, const ClusterSpec& cluster) {
  return simulate(programs, Topology(cluster, programs.ranks), cluster, {.collapse = false})
      .makespan_s;
}

// An algorithm on P ranks of one node, on plain_problem().
double time_of(const char* algorithm, int ranks, const char* collective, double bandwidth,
               Pass pass = Pass::kForward) {
  const ClusterSpec cluster =
      plain_cluster({.gpus_per_node = ranks, .intra_alpha = kAlpha, .intra_bandwidth = bandwidth});
  return time_of(
      compile(make_schedule(find_algorithm(algorithm), plain_problem(ranks), pass),
              Twins{ranks, ranks}, cluster, plan_collectives(cluster, collective, ranks)),
      cluster);
}

ClosedFormTime ring(double bandwidth, const char* what) {
  constexpr int kRanks = 8;
  const double rows = double(kTokens) / kRanks;
  const double block = 4.0 * kDim * rows * rows * kHeads / kSpeed;
  const double hop = kAlpha + 2 * rows * kHeads * kDim * kBytes / bandwidth;
  const double merge = rows * kHeads * (kDim + 1) * 4 / (kMemory / 3);
  const double expected =
      hop < block ? block + (kRanks - 1) * (block + merge) : (kRanks - 1) * hop + block + merge;
  return {std::string("ring attention, ") + what,
          "t + (P - 1) (t + t_merge) where compute hides the hop a + S / b, else "
          "(P - 1) (a + S / b) + t + t_merge",
          expected, time_of("ring", kRanks, "ring", bandwidth)};
}

ClosedFormTime all_gather() {
  constexpr int kRanks = 8;
  const double shard = 2.0 * kTokens / kRanks * kHeads * kDim * kBytes;
  const double pack = shard / (kMemory / 2);
  const double attend = 4.0 * kDim * kTokens / kRanks * kTokens * kHeads / kSpeed;
  return {"ring all-gather", "t_pack + (P - 1) (a + m / b) + t_attend",
          pack + (kRanks - 1) * (kAlpha + shard / kBeta) + attend,
          time_of("all_gather", kRanks, "ring", kBeta)};
}

// Seconds of a rank's backward pass over `rows` rows and `keys` keys, without messages.
struct BackwardTimes {
  double rows, keys;
  double values = rows * kHeads * kDim;  // in a tensor of queries
  double delta = (values * (4 + kBytes) + rows * kHeads * 4) / kMemory;
  double reset_q = values * 4 / kMemory, reset_kv = 2 * reset_q;
  double sum = 2 * values * 4 / (kMemory / 3);  // to add gradients of as many rows of K and V
  double attend = 10.0 * kDim * rows * keys * kHeads / kSpeed;
  double add = values * (kBytes + 8) / kMemory;  // dQ of one of several attends, to their sum
};

// K/V travel P - 1 hops, then the sums of their gradients, each of which begins one hop further. On
// a busy link, three latencies have nothing before them to hide behind: of the first two messages,
// which wait for each other, and of the last sum, which waits to be made.
ClosedFormTime ring_backward(double bandwidth, const char* what) {
  constexpr int kRanks = 8;
  const BackwardTimes t{.rows = double(kTokens) / kRanks, .keys = double(kTokens) / kRanks};
  const double kv = 2 * t.values * kBytes / bandwidth, sums = 2 * t.values * 4 / bandwidth;
  const bool hidden = kv + sums < t.attend;
  const double expected = hidden ? t.delta + t.reset_q + kRanks * (t.reset_kv + t.attend + t.add) +
                                       (kRanks - 1) * t.sum + kAlpha + sums
                                 : (kRanks - 1) * (kv + sums) + 3 * kAlpha + 2 * t.sum;
  return {std::string("ring attention backward, ") + what,
          "t_delta + t_0q + P (t_0 + t + t_q) + (P - 1) t_sum + a + G / b where compute hides the "
          "hops, "
          "else (P - 1) (S + G) / b + 3 a + 2 t_sum",
          expected, time_of("ring", kRanks, "ring", bandwidth, Pass::kBackward)};
}

ClosedFormTime all_gather_backward_time() {
  constexpr int kRanks = 8;
  const BackwardTimes t{.rows = double(kTokens) / kRanks, .keys = kTokens};
  const double kv = 2 * t.values * kBytes, sums = 2 * t.values * 4;
  return {"all-gather, reduce-scatter of gradients",
          "t_pack + (P - 1) (a + m / b) + t + (P - 1) (a + g / b + t_sum) + t_sum",
          kv / (kMemory / 2) + (kRanks - 1) * (kAlpha + kv / kBeta) + t.attend +
              (kRanks - 1) * (kAlpha + sums / kBeta + t.sum) + t.sum,
          time_of("all_gather", kRanks, "ring", kBeta, Pass::kBackward)};
}

// Every rank has m for every other.
ClosedFormTime all_to_all(bool pairwise) {
  constexpr int kRanks = 8;
  constexpr double kPiece = 1e6;
  std::vector<LooseProgram> programs{size_t{kRanks}};
  for (int p = 0; p < kRanks; ++p) {
    std::vector<int> before;
    for (int k = 1; k < kRanks; ++k) {
      LooseProgram& mine = programs[size_t(p)];
      const int out = mine.add(OpKind::kSend, (p + k) % kRanks, kPiece, before);
      const int in = mine.add(OpKind::kRecv, (p + kRanks - k) % kRanks, kPiece, before);
      if (pairwise) before = {out, in};
    }
  }
  const double simulated = time_of(
      pack_all(programs, ExecutionKind::kStreams),
      plain_cluster({.gpus_per_node = kRanks, .intra_alpha = kAlpha, .intra_bandwidth = kBeta}));
  if (pairwise)
    return {"pairwise all-to-all", "(P - 1) (a + m / b)", (kRanks - 1) * (kAlpha + kPiece / kBeta),
            simulated};
  return {"all-to-all at once", "a + (P - 1) m / b: max-min sharing keeps every port full",
          kAlpha + (kRanks - 1) * kPiece / kBeta, simulated};
}

ClosedFormTime two_flows() {
  constexpr double kM = 4e8;
  std::vector<LooseProgram> p{size_t{3}};
  p[0].add(OpKind::kSend, 1, kM);
  p[0].add(OpKind::kSend, 2, 3 * kM);
  p[1].add(OpKind::kRecv, 0, kM);
  p[2].add(OpKind::kRecv, 0, 3 * kM);
  const ClusterSpec c = plain_cluster({.intra_alpha = kAlpha, .intra_bandwidth = kBeta});
  return {"two flows on one link", "a + (m + 3 m) / b: half each, then all for the longer",
          kAlpha + 4 * kM / kBeta, time_of(pack_all(p, ExecutionKind::kStreams), c)};
}

ClosedFormTime tapered_tree() {
  constexpr double kM = 1e8, kTaper = 4;
  constexpr int kBelow = 8;  // ranks of a leaf: two nodes of four
  std::vector<LooseProgram> p{size_t{2 * kBelow}};
  for (int g = 0; g < kBelow; ++g) {
    p[size_t(g)].add(OpKind::kSend, g + kBelow, kM);
    p[size_t(g + kBelow)].add(OpKind::kRecv, g, kM);
  }
  const ClusterSpec c = plain_cluster({.inter_alpha = kInterAlpha,
                                       .inter_bandwidth = kInterBeta,
                                       .topology = {.kind = TopologyKind::kFatTree,
                                                    .nodes_per_leaf = {2, "chosen"},
                                                    .taper = {kTaper, "chosen"}}});
  return {"tapered tree", "a + m taper / b: all cards of a leaf through its links",
          kInterAlpha + kM * kTaper / kInterBeta, time_of(pack_all(p, ExecutionKind::kStreams), c)};
}

}  // namespace

ShardedProblem plain_problem(int ranks) {
  return {{.seq_len = kTokens,
           .num_heads = kHeads,
           .num_kv_heads = kHeads,
           .head_dim = kDim,
           .dtype = DType::kBFloat16},
          dense_pattern(kTokens),
          {kTokens, ranks}};
}

ClusterSpec plain_cluster(const PlainCluster& s) {
  const auto q = [](double v) { return Quantity{v, "chosen"}; };
  ClusterSpec c{.name = "chosen", .nodes = q(s.nodes), .gpus_per_node = q(s.gpus_per_node)};
  c.device.name = "chosen";
  c.device.memory_bytes = q(80e9), c.device.memory_bandwidth_bytes_per_s = q(1e12);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    c.device.peak_flops[dtype] = q(1e15);
    for (const bool causal : {false, true})
      for (const bool backward : {false, true})
        c.device.attend.push_back({.rows = 1024,
                                   .head_dim = 64,
                                   .dtype = dtype,
                                   .causal = causal,
                                   .backward = backward,
                                   .flops_per_s = 1e14,
                                   .source = "chosen"});
  }
  c.intra = {.alpha_s = {{s.intra_alpha, s.intra_alpha, s.intra_alpha}, "chosen"},
             .bandwidth_bytes_per_s = q(s.intra_bandwidth),
             .ports_per_node = q(s.gpus_per_node),
             .overhead_s = q(s.overhead_s),
             .ll_bytes_per_s = q(141e9)};
  c.inter = {.alpha_s = {{s.inter_alpha, s.inter_alpha, s.inter_alpha}, "chosen"},
             .bandwidth_bytes_per_s = q(s.inter_bandwidth),
             .ports_per_node = q(s.cards > 0 ? s.cards : s.gpus_per_node),
             .overhead_s = q(s.overhead_s)};
  c.topology = s.topology;
  c.execution = s.execution;
  c.async_progress = s.async_progress;
  c.overlap_efficiency = q(s.overlap_efficiency);
  return c;
}

std::vector<ClosedFormTime> closed_form_times() {
  return {ring(kBeta, "compute-bound"),
          ring(1e9, "link-bound"),
          all_gather(),
          ring_backward(kBeta, "compute-bound"),
          ring_backward(1e9, "link-bound"),
          all_gather_backward_time(),
          all_to_all(true),
          all_to_all(false),
          two_flows(),
          tapered_tree()};
}

}  // namespace longnet
