// A machine that the simulator knows: devices, links, topology, collectives of its libraries.
//
//   ClusterSpec c = load_cluster("configs/clusters/h100-ndr400.json");
//   c.inter.bandwidth_bytes_per_s.value    // 4.85e10; .source names where it comes from
//
// Every number carries where it comes from: a measurement, a data sheet, a paper, others' code, or
// "chosen" where a user would choose. The file format is strict, like configs (unknown keys are
// errors); its schema is configs/schema/cluster.schema.json.
#pragma once
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"
#include "core/rank_group.h"
#include "schedule/lower_collectives.h"

namespace longnet {

struct Quantity {
  double value = 0;
  std::string source{};
};

// Latencies of a message, from optimistic to pessimistic. A measured machine has one value for all
// three. NCCL's tuner uses the second and third per step of its LL and Simple protocols.
enum class AlphaSet { kIdeal, kNcclLl, kNcclSimple };
constexpr auto texts_of(AlphaSet) { return texts("ideal", "nccl_ll", "nccl_simple"); }
inline constexpr auto kAlphaSets = enum_values<AlphaSet>();

struct AlphaBand {
  std::array<double, 3> seconds{};  // by AlphaSet
  std::string source{};
  double of(AlphaSet set) const { return seconds[size_t(set)]; }
  bool is_band() const { return seconds[0] != seconds[1] || seconds[1] != seconds[2]; }
};

// One class of links: inside a node, or between nodes.
struct LinkSpec {
  AlphaBand alpha_s{};
  Quantity bandwidth_bytes_per_s{};  // one port, each direction
  Quantity ports_per_node{};         // ranks of a node share them in order
  Quantity overhead_s{};             // time of the rank itself per message posted
  Quantity call_s{};                 // one call of NCCL, besides the latency
  Quantity channel_bytes_per_s{};    // one of NCCL's channels; 0: no limit
  Quantity channels{};               // most of a pair of ranks; 0: not known, between nodes two
  Quantity shared_bytes_per_s{};     // all such traffic of a node together; 0: no limit
  Quantity ll_bytes_per_s{};         // most that NCCL's LL protocol moves in one node; 0: any
  Quantity ll128_bytes_per_s{};      // most that its LL128 moves over a card between nodes; 0: any
  Quantity device_share{};           // the device's cores that a channel holds while it moves
};

// Speed of attention: one measured or published figure.
struct KernelRow {
  std::string kernel{};  // "" where a device has one
  double rows = 0;       // keys that a query sees (of a full mask)
  double head_dim = 0;
  DType dtype = DType::kBFloat16;
  bool causal = false;
  bool backward = false;
  double flops_per_s = 0;  // 4 head_dim per (query, key) pair, 10 backward
  double all_rows = 0;     // x heads x batch, whose last wave counts; 0: measured in whole waves
  bool estimate = false;   // from another device or pass: what rests on it is a guess
  std::string source{};
  bool prices(const std::string& name, DType type, bool of_backward) const {
    return kernel == name && dtype == type && backward == of_backward;
  }
};

// The rows that a backward kernel splits into blocks, each of which loops over the others. kBoth:
// one pass over blocks of queries (S, dP, dQ), and one over blocks of keys (S, dP, dV, dK).
enum class KernelSplit { kQueries, kKeys, kBoth };
constexpr auto texts_of(KernelSplit) { return texts("queries", "keys", "both"); }
struct BackwardSplit {
  KernelSplit value = KernelSplit::kQueries;
  std::string source{};
};

// Blocks of a forward pass that a multiprocessor holds at once, up to a head_dim; beyond it one.
struct BlocksAtOnce {
  double value = 1, max_head_dim = 0;
  std::string source{};
};

// Speed of attention on a machine that takes queries block by block, packing the keys anew for each
// (as this suite's CPU kernel does): seconds = blocks * block_s + queries * query_s + key rows of
// all blocks * key_s + pairs * pair_s, at one head_dim (interpolated between). Where a device has
// it, it goes before the table. A backward pass is priced alike: a block also reads dO and adds
// to dQ of its rows, and to dK and dV of its keys.
struct AttendModel {
  double head_dim = 0;
  DType dtype = DType::kFloat32;
  bool causal = false;
  bool backward = false;
  double block_rows = 0;  // most queries of a block
  double block_s = 0, query_s = 0, key_s = 0, pair_s = 0;
  std::string source{};
};

struct DeviceSpec {
  std::string name{};
  std::map<DType, Quantity> peak_flops{};
  std::map<DType, Quantity> gemm_flops{};  // per second, of large products; models need it
  Quantity gemm_bytes_per_s{};             // their matrices, besides; 0: hidden behind FLOPs
  // Bytes that functions of models read and write; 0, or not there: at the memory's bandwidth.
  std::map<RowFunction, Quantity> row_wise_bytes_per_s{};
  Quantity cross_entropy_bytes_per_s{}, update_bytes_per_s{};
  Quantity memory_bytes{}, memory_bandwidth_bytes_per_s{};
  std::vector<KernelRow> attend{};
  std::string kernel{};                                    // that runs: one of those in `attend`
  std::map<std::string, BackwardSplit> backward_splits{};  // by kernel; others split queries
  std::vector<AttendModel> attend_model{};
  Quantity launch_s{};   // before each op that computes or copies
  Quantity fill_rows{};  // rows (x heads x batch) of a wave of blocks, one an SM; 0: one wave
  std::map<std::string, BlocksAtOnce> blocks_at_once{};  // by kernel; others one
  Quantity pack_bytes_per_s{};   // bytes copied; 0: half the memory bandwidth (read and write)
  Quantity merge_bytes_per_s{};  // bytes of partials folded in; 0: a third of it
  Quantity sum_bytes_per_s{};    // bytes of gradients added; 0: a third of it
  Quantity delta_bytes_per_s{};  // bytes of O and dO that a delta reads; 0: all of it
  // Speed of a rank that has the cluster for itself, over that of ranks that are all at work; those
  // in between lie between. 0: the same.
  Quantity alone_speed{};
};

enum class TopologyKind { kSingleSwitch, kFatTree, kRailOptimised, kTorus, kDragonfly };
constexpr auto texts_of(TopologyKind) {
  return texts("single_switch", "fat_tree", "rail_optimised", "torus", "dragonfly");
}

struct TopologySpec {
  TopologyKind kind = TopologyKind::kSingleSwitch;
  Quantity nodes_per_leaf{};      // fat_tree, rail_optimised
  Quantity taper{.value = 1};     // bandwidth below a leaf over that above it
  std::vector<int> dimensions{};  // torus: nodes along each, first fastest
  std::string dimensions_source{};
  Quantity link_bytes_per_s{};    // torus: between neighbours, each direction
  Quantity nodes_per_group{};     // dragonfly
  Quantity global_bytes_per_s{};  // dragonfly: between two groups, each direction
  Quantity hop_s{};               // per hop beyond the first switch
};

// Order in which a rank executes its program. `in_order`: one thread, as this suite's CPU executor:
// a compute op occupies it, a communication is posted when everything before it is posted and its
// dependencies are over. `streams`: attention, copies and communication each have an in-order
// queue, as on GPUs.
enum class ExecutionKind { kStreams, kInOrder };
constexpr auto texts_of(ExecutionKind) { return texts("streams", "in_order"); }

// How a partial is folded into the output. `kernel`: by one kernel, which reads both and writes
// one. `fused`: by the attend that computes it, which reads and writes the output once more.
// `eager`: by framework operators one at a time, each through memory: cast, difference, product
// with the sigmoid of the LSEs, sum, 38 bytes a value; 8 more to write a slice of the output back
// (ring-flash-attention, utils.py, _update_out_and_lse and update_out_and_lse).
enum class MergeKind { kKernel, kFused, kEager };
constexpr auto texts_of(MergeKind) { return texts("kernel", "fused", "eager"); }

// The algorithms of `native` collectives: a lowering of schedule/lower_collectives.h, or a named
// formula (simulate/collective_times.h).
struct CollectiveNames {
  std::string all_gather{to_string(AllGatherAlgorithm::kRing)};
  std::string all_to_all{to_string(AllToAllAlgorithm::kPairwise)};
  std::string reduce_scatter{to_string(ReduceScatterAlgorithm::kRing)};
  std::string source{};
};

struct ClusterSpec {
  std::string name{}, description{};
  Quantity nodes{}, gpus_per_node{};
  DeviceSpec device{};
  LinkSpec intra{}, inter{};
  TopologySpec topology{};
  CollectiveNames collectives{};
  ExecutionKind execution = ExecutionKind::kStreams;
  std::string execution_source{};
  MergeKind merge = MergeKind::kKernel;
  std::string merge_source{};
  // false: messages move only while both ranks wait for communication.
  bool async_progress = true;
  std::string async_progress_source{};
  // Without async_progress: bytes per second of all messages together of a rank that computes and
  // polls them from time to time; 0: none.
  Quantity async_bytes_per_s{};
  Quantity overlap_efficiency{.value = 1};  // speed of compute while messages of the rank move
  // Seconds that the host takes to issue one operator of a framework; it never waits for the
  // device.
  Quantity host_s{};
  Quantity error{};           // share by which predictions may be off; a point's interval holds it
  double latency_factor = 1;  // a what-if's, for latencies that no file has (NCCL's model)

  int num_nodes() const { return int(nodes.value); }
  int node_size() const { return int(gpus_per_node.value); }
  int num_gpus() const { return num_nodes() * node_size(); }
};

// Throw UsageError that lists every problem: file, line, JSON path, what is wrong, what to do.
ClusterSpec load_cluster(const std::string& path);
ClusterSpec parse_cluster(std::string_view text, const std::string& path);
// Text of a cluster file, as `calibrate` writes it. parse_cluster reads it back to an equal spec.
std::string cluster_to_json(const ClusterSpec& cluster);

// Ranks that compute slower than the others: one, or `count` of them spread evenly over the world.
struct Straggler {
  double slower = 0;  // 0.2 is 20 %; 0: no rank is
  Rank rank = 0;      // with count 1
  int count = 1;      // the ranks floor(i P / count)
  bool exists() const { return slower > 0; }
  bool is(Rank r, int ranks) const;
  // Ranks p and p + period() are equally slow; `ranks` when no shift leaves them so.
  int period(int ranks) const;
  bool operator==(const Straggler&) const = default;
};

// A "what if" question: factors that scale figures of a cluster, and values that replace them.
struct WhatIf {
  double bandwidth = 1, inter_bandwidth = 1, latency = 1;  // factors on links
  std::optional<double> taper{}, gpus_per_node{}, nodes{}, overlap_efficiency{}, host_s{};
  Straggler straggler{};
  std::string kernel{};  // another of the device's kernels; "": the file's
  std::optional<MergeKind> merge{};
  bool is_plain() const;
  std::string text() const;                      // "bandwidth=0.5 taper=2", "" when plain
  std::map<std::string, double> values() const;  // its numbers, by name
};
// "bandwidth=0.5,taper=2,kernel=fa3"; throws UsageError that lists the known names. Slow ranks:
// straggler=0.2 is rank 0, 20 % slower; straggler=0.2@17 rank 17; straggler=0.2x8 eight ranks,
// spread evenly.
WhatIf parse_what_if(std::string_view text);
ClusterSpec apply(const ClusterSpec& cluster, const WhatIf& what_if);

}  // namespace longnet
