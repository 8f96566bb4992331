// Questions of `lnbench recommend` to a cluster, and their answers: every algorithm with its
// options on one length and number of ranks, simulated and ranked.
//
//   Question ─> question_config ─> points, simulated one by one ─> Ranking::add ─> exact, dilated
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/axes.h"
#include "io/record.h"
#include "simulate/cluster.h"

namespace longnet {

struct Question {
  std::string seq_len, dtype = "bf16";  // "16M"
  int ranks = 0;
  int64_t heads = standard_params().problem.num_heads, kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = standard_params().problem.head_dim, batch = 1;
  bool causal = false;
  std::string pass = "forward";
  std::vector<std::string> dilated_segments{};  // "2048", "per_rank", "sequence"; empty: default
};

// Returns the question as the text of a config: one length, one number of ranks, every algorithm
// and option.
std::string question_config(const Question& question, const ClusterSpec& cluster);

// Relative difference that predictions for this cluster cannot tell from none.
double tie_share(const ClusterSpec& cluster);

// "usp degree=8 zigzag": the algorithm with its options.
std::string choice_text(const PointParams& params);
// Why a record stands where it does: "waits 20 % of the time for others; 1.3 x the first".
// `fastest_s` is the first's time, `tie` the share that cannot be told from none.
std::string reason_text(const PointRecord& record, double fastest_s, double tie);

// Records by time, the fastest first, apart by what they compute; and those that cannot run.
struct Ranking {
  std::vector<PointRecord> exact{}, dilated{}, stopped{};
  void add(PointRecord record);
  void sort();
  // One line for each reason, with the algorithm that it stops.
  std::vector<std::string> reasons_of_stopped() const;
};

}  // namespace longnet
