// Measures this machine as a cluster: kernels, memory, links, and the progress of messages while
// ranks compute; or puts what GPUs have measured into a cluster.
//
// All ranks work at once, as they do in runs; a second pass times one rank alone. Ranks of one host
// (and one network namespace) make a node; links inside and between nodes are measured apart.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "measure/sampler.h"
#include "run/world.h"
#include "simulate/calibration.h"
#include "simulate/cluster.h"

namespace longnet {

// ---- one operation, on all ranks at once, within a budget ----

struct Effort {
  double seconds = 0.08;  // goes on for as long...
  int min_runs = 5;       // ...but takes at least so many runs
  int max_runs = 300;
};

struct CalibrationBudget {
  bool quick = false;                                    // fewer and smaller shapes of attends
  Effort kernel{}, link{.seconds = 0.4, .min_runs = 7};  // for a shape of attends; a message size
  Effort overlap{.seconds = 0.5, .min_runs = 9};
  Effort model{.seconds = 3, .min_runs = 5};  // steps of one width
  std::vector<int64_t> head_dims{32, 64, 128};
  double largest_message_s = 0.25;  // sizes end where one exchange takes longer
  int64_t max_message_bytes = int64_t{16} << 20, bandwidth_array = int64_t{128} << 20;
  int64_t overlap_rows = 2048;
  int alone_rounds = 9;
};
// `quick`: seconds instead of two minutes.
CalibrationBudget calibration_budget(bool quick);

// The faster quartile of the slowest rank's seconds by `clock` (a disturbed run says nothing about
// the machine), after one run that does not count. Collective: rank 0 says when it is enough.
template <class Run>
double quartile_seconds(Communicator& comm, const Effort& effort, const Run& run,
                        double (*clock)() = steady_seconds) {
  run();
  std::vector<double> samples;
  const double begin = steady_seconds();
  for (bool go_on = true; go_on;) {
    comm.barrier();
    const double start = clock();
    run();
    samples.push_back(comm.max_of(clock() - start));
    const int runs = int(samples.size());
    go_on =
        comm.broadcast_flag(runs < effort.min_runs ||
                            (runs < effort.max_runs && steady_seconds() - begin < effort.seconds));
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 4];
}

// ---- the times of one rank's kernels (calibrate_kernel.cpp) ----
//
// Blocks of queries against lists of keys, cut as the executor cuts them:
//   1 x 2048 x 2048, 1 x 2048 x 512, 4 x 128 x 1024, 16 x 64 x 64 ...; causal: whole sequences
// Rows lie four heads apart, as in a tensor [token][4 heads][head_dim]. Backward passes are timed
// as whole tasks, which their kernel cuts by itself.

struct AttendMeasurement {
  int64_t head_dim = 64;
  DType dtype = DType::kFloat32;
  bool causal = false, backward = false;
  std::vector<AttendTime> times{};
  // Rows of the table: measurements with as many queries as keys.
  std::vector<KernelRow> rows{};
};

struct KernelMeasurement {
  std::vector<AttendMeasurement> attends{};
  double pack_bytes_per_s = 0, merge_bytes_per_s = 0, sum_bytes_per_s = 0, delta_bytes_per_s = 0;
  double launch_s = 0;  // per op of the executor, beyond what its kernel takes
};

// Collective over the ranks of `comm`, all at work at the same time. `threads` of each rank.
KernelMeasurement measure_kernels(Communicator& comm, int threads, const CalibrationBudget& budget);

// ---- ops of training steps of models (calibrate_model.cpp) ----
//
// Whole steps of a few widths run, and each op is timed where it stands, with what the op before it
// has left in the caches.

// Bytes or FLOPs of some ops, and the seconds that they took.
struct Moved {
  double amount = 0, seconds = 0;
  double per_s() const { return amount / seconds; }
};
struct ModelMeasurement {
  std::vector<GemmTime> gemms{};
  std::map<RowFunction, Moved> row_wise{};
  Moved cross_entropy{}, update{};
};
// Collective, as measure_kernels. fp32.
ModelMeasurement measure_model(Communicator& comm, int threads, const CalibrationBudget& budget);

// Seconds of one attend of 2048 x 2048 rows, head_dim 64, fp32: of a rank alone, or all at work.
double measure_one_attend(Communicator& comm, int threads, const CalibrationBudget& budget);

inline constexpr int64_t kQueryBlockRows = 2048;  // most queries that the executor gives a task
// Queries of a backward block, where there are few others (kernels/cpu/backward_schedule.h).
inline constexpr int64_t kBackwardBlockRows = 512;

// ---- messages between two ranks, alone and while ranks compute (calibrate_links.cpp) ----

struct LinkMeasurement {
  std::vector<MessageTime> one_way{};   // half a round trip
  std::vector<MessageTime> exchange{};  // both directions at once, as rings use links
  double overhead_s = 0;                // the rank's own time per small message posted
};

// Between ranks `a` and `b`; the others wait. Collective.
LinkMeasurement measure_link(Communicator& comm, Rank a, Rank b, const CalibrationBudget& budget);

// Ring attention: all, only compute, only messages, and what compute took while messages moved.
struct OverlapMeasurement {
  int64_t seq_len = 0;
  double ranks = 0, message_bytes = 0;
  double full_s = 0, compute_s = 0, communication_s = 0;
  double compute_in_full_s = 0;

  // Too short to be told apart from the noise of compute.
  bool too_short() const { return communication_s < 0.05 * compute_s; }
  double hidden_s() const {  // part of the messages' time that compute hides
    return std::clamp(communication_s - (full_s - compute_in_full_s), 0.0, communication_s);
  }
  // Bytes per second that a rank's messages move, in and out, while it computes: they are in flight
  // during all attends but the last.
  double bytes_per_s_without_progress() const {
    if (too_short()) return 0;
    const double bytes = 2 * (ranks - 1) * message_bytes * hidden_s() / communication_s;
    return bytes / (compute_in_full_s * (ranks - 1) / ranks);
  }
  double efficiency() const {  // speed of compute beside messages, at most 1
    return too_short() ? 1 : std::clamp(compute_s / compute_in_full_s, 0.1, 1.0);
  }
};
// Collective.
OverlapMeasurement measure_overlap(Communicator& comm, int threads,
                                   const CalibrationBudget& budget);

// ---- the machine as a cluster (calibrate_cluster.cpp) ----

struct Calibration {
  int nodes = 1, ranks_per_node = 1, threads = 1;
  double peak = 0, bandwidth = 0, alone_speed = 1;
  KernelMeasurement kernel{};
  ModelMeasurement model{};
  LinkMeasurement intra{}, inter{};
  OverlapMeasurement overlap{};
  bool has_intra() const { return ranks_per_node > 1; }
  bool has_inter() const { return nodes > 1; }
};

// "off by 1.2 % in the median, 3 % at most"
std::string off_text(const FitErrors& errors);

// Collective; on rank 0 the result, on the others something incomplete. `say` is called with the
// name of each step.
Calibration calibrate(World& world, const CalibrationBudget& budget,
                      const std::function<void(const std::string&)>& say);
// Returns the measurements as a cluster.
ClusterSpec to_cluster(const Calibration& calibration, const World& world, const Environment& env,
                       const std::string& name);

// ---- what GPUs have measured (calibrate_gpu.cpp) ----

// `base` with the figures of `file`, what gpu_kernels_benchmark --json wrote, for `kernel` ("cuda",
// "cudnn"), which becomes the cluster's: dense attention in bf16. Published rows of that kernel
// give way where a head_dim and mask were measured; others stay. The speed of products gives way
// where the file has some of their type, and so do those of a model's other ops, which a file may
// have alone. Throws UsageError when the file holds no such figures.
ClusterSpec with_measured_kernels(ClusterSpec base, const std::string& file,
                                  const std::string& kernel);

// `base` with the link between ranks 0 and 1 of `file`, what `lnbench comm --transport ... --json`
// wrote of GPUs: fitted to messages in both directions at once, as rings use links. On one host it
// is the link inside a node, else that between nodes. Throws UsageError without such figures.
ClusterSpec with_measured_link(ClusterSpec base, const std::string& file);

}  // namespace longnet
