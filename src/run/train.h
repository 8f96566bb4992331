// Training of a model (src/model) on all ranks of a config's one point, into a folder:
//
//   run.json         config, environment, ranks, as of every run
//   train.jsonl      a line a step: loss, held-out loss, norm, learning rate, seconds by kind of op
//   timelines.jsonl  the ops of the last step
//   checkpoint.bin   weights and moments; --resume goes on from it to the same bits
#pragma once
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "io/result.h"
#include "run/sweep.h"
#include "run/watchdog.h"

namespace longnet {

struct TrainStep {
  int64_t step = 0;          // from 1
  double bits_per_byte = 0;  // the batch's, before its update
  double held_out_bits = std::numeric_limits<double>::quiet_NaN();  // after it, where evaluated
  double gradient_norm = 0;                                         // before clipping
  double learning_rate = 0;
  double seconds = 0;
  std::map<std::string, double> seconds_by{};  // rank 0's: gemm, attention, row_wise, ...
  static void fields(auto& t, auto&& visit) {
    visit("step", t.step);
    visit("bits_per_byte", t.bits_per_byte);
    visit("held_out_bits", t.held_out_bits);
    visit("gradient_norm", t.gradient_norm);
    visit("learning_rate", t.learning_rate);
    visit("seconds", t.seconds);
    visit("seconds_by", t.seconds_by);
  }
};

// A config for `train`: its text, its one point, and what that takes.
struct TrainPlan {
  Config config;
  TrainConfig train;
  Point point;
  int64_t parameters = 0;
  std::map<std::string, int64_t> memory_by_tag{};  // on the rank with the most
  int64_t memory_bytes() const { return total_bytes(memory_by_tag); }
  int64_t tokens_per_step() const {
    return point.params.problem.batch * point.params.problem.seq_len;
  }
};
// Throws UsageError where the config has no section `train`, more points than one, or needs more
// memory than the limits allow.
TrainPlan plan_training(const Sweep& sweep, const MachineLimits& limits, int ranks_here);

struct TrainHooks {                                   // on rank 0
  std::function<bool()> stop = [] { return false; };  // asked after each step
  std::function<void(const TrainStep&)> stepped = [](const TrainStep&) {};
};

struct Trained {
  std::string directory;
  std::optional<TrainStep> last{};
  double held_out_bits = std::numeric_limits<double>::quiet_NaN();  // the last one known
  bool complete = false;
};

// Collective over the processes of the world. Throws the exception that a rank threw.
Trained train(World& world, const TrainPlan& plan, RunTarget target, const TrainHooks& hooks,
              Watchdog& watchdog);

// Rises in a line to `learning_rate`, then falls along a cosine to its final share.
double learning_rate_of(const TrainConfig& config, int64_t step);

}  // namespace longnet
