// From the measurements of this machine (calibrate.h) to its cluster file: kernel rows, links, the
// model fitted to them, how much faster a rank is alone, and how far the fits are off.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.h"
#include "io/units.h"
#include "kernels/cpu/machine_peak.h"
#include "run/calibrate.h"

namespace longnet {
namespace {

// Identity of a rank's host and network namespace: ranks that share it exchange messages through
// memory.
std::string host_identity() {
  std::error_code ignored;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", ignored);
  return concat(host_name(), " ", network.string());
}

int count_nodes(World& world) {
  const std::vector<std::string> where = world.all_texts(host_identity());
  int nodes = 1;
  for (size_t r = 1; r < where.size(); ++r) nodes += where[r] != where[r - 1];
  const size_t each = where.size() / size_t(nodes);
  for (size_t r = 0; r < where.size(); ++r)
    if (where[r] != where[r / each * each])
      throw UsageError(
          "calibrate needs the same number of ranks on each host, one host after the other "
          "(mpirun --map-by slot, equal slots)");
  return nodes;
}

double measure_alone_speed(World& world, int threads, const CalibrationBudget& budget) {
  std::vector<double> alone, together;
  for (int i = 0; i < budget.alone_rounds; ++i)
    for (auto* times : {&together, &alone})
      times->push_back(world.run(times == &alone ? 1 : world.size(), [&](Communicator& comm) {
        return measure_one_attend(comm, threads, budget);
      }));
  // The best of each: what disturbs one round says nothing of the machine.
  return world.is_root() ? std::ranges::min(together) / std::ranges::min(alone) : 1;
}

std::string percent(double x) { return concat(double(std::lround(1000 * x)) / 10, " %"); }

class ClusterWriter {
 public:
  ClusterWriter(const Calibration& m, const World& world, const Environment& env)
      : m_(m),
        env_(env),
        by_(concat("measured by lnbench calibrate, ", env.captured_utc.substr(0, 10), ", ",
                   env.cpu_model, ", ", env.usable_threads, " usable threads, ", world.size(),
                   " ranks (", world.transport(), ") of ", m.threads, " thread(s): ")) {}

  ClusterSpec cluster(const std::string& name) const {
    ClusterSpec c{.name = name};
    c.description =
        concat("Calibration by lnbench calibrate on ", env_.captured_utc, ": ", env_.cpu_model,
               why_busy(env_).empty() ? "."
                                      : concat(". The machine was busy (", why_busy(env_),
                                               "): its figures deserve little trust."));
    c.nodes = {double(m_.nodes), "hosts that the ranks were on"};
    c.gpus_per_node = {double(m_.ranks_per_node), "ranks per host; each is a device"};
    c.device = device();
    c.intra = m_.has_intra() ? link(m_.intra, true) : no_link(m_.has_inter() ? &m_.inter : nullptr);
    c.inter =
        m_.has_inter() ? link(m_.inter, false) : no_link(m_.has_intra() ? &m_.intra : nullptr);
    c.topology.kind = TopologyKind::kSingleSwitch;
    c.collectives = {.all_gather = std::string(to_string(AllGatherAlgorithm::kRing)),
                     .all_to_all = std::string(to_string(AllToAllAlgorithm::kLinear)),
                     .reduce_scatter = std::string(to_string(ReduceScatterAlgorithm::kRing)),
                     .source =
                         "all-to-alls of Open MPI send to all at once (open-mpi/ompi at 0227fc4, "
                         "ompi/mca/coll/libnbc/nbc_ialltoallv.c), and so do its all-gathers (at "
                         "097df59, nbc_iallgatherv.c), which on two ranks are a ring's one step; "
                         "reduce-scatters are this suite's ring"};
    c.execution = ExecutionKind::kInOrder;
    c.execution_source = "this suite's CPU executor: one thread walks the program";
    set_overlap(c);
    return c;
  }

 private:
  Quantity measured(double value, const std::string& what) const { return {value, by_ + what}; }

  DeviceSpec device() const {
    DeviceSpec d{.name = env_.cpu_model};
    d.peak_flops[DType::kFloat32] = measured(m_.peak, "fused multiply-adds in registers, per rank");
    d.peak_flops[DType::kBFloat16] =
        measured(m_.peak, "as fp32: bf16 is storage, arithmetic is fp32");
    d.memory_bytes = {double(env_.memory_limit_bytes) / m_.ranks_per_node,
                      by_ + "the memory limit of the system over the ranks of a node"};
    d.memory_bandwidth_bytes_per_s =
        measured(m_.bandwidth, "a[i] += s * b[i] beyond the caches, per rank, all at once");
    d.launch_s = measured(m_.kernel.launch_s,
                          "one attend of eight rows through the executor, per op of a program");
    d.pack_bytes_per_s = measured(m_.kernel.pack_bytes_per_s,
                                  "every other row of 4 heads of 64 floats packed out of 16 MB");
    d.merge_bytes_per_s = measured(m_.kernel.merge_bytes_per_s,
                                   "partials of 8192 rows of 4 heads merged (O and LSE counted)");
    d.sum_bytes_per_s =
        measured(m_.kernel.sum_bytes_per_s, "gradients of 8192 rows of 4 heads added to others");
    d.delta_bytes_per_s = measured(m_.kernel.delta_bytes_per_s,
                                   "O, LSE and dO of 8192 rows of 4 heads read by a delta");
    if (m_.alone_speed > 0)
      d.alone_speed = measured(m_.alone_speed,
                               "speed of an attend on one rank while the others rest, over that "
                               "while all work");
    add_model(d);
    for (const AttendMeasurement& a : m_.kernel.attends) add_attend(a, d);
    return d;
  }

  void add_model(DeviceSpec& d) const {
    const GemmFit fit = fit_gemm(m_.model.gemms);
    const std::string fitted =
        concat("fitted to ", m_.model.gemms.size(), " products of training steps; ", off_text(fit));
    d.gemm_flops[DType::kFloat32] = measured(fit.flops_per_s, fitted);
    if (fit.bytes_per_s > 0) d.gemm_bytes_per_s = measured(fit.bytes_per_s, fitted);
    const std::string_view moved = "in training steps, bytes read and written";
    for (const auto& [function, total] : m_.model.row_wise)
      d.row_wise_bytes_per_s[function] =
          measured(total.per_s(), concat(to_string(function), " ", moved));
    d.cross_entropy_bytes_per_s =
        measured(m_.model.cross_entropy.per_s(), concat("cross-entropy ", moved));
    d.update_bytes_per_s = measured(m_.model.update.per_s(), concat("AdamW ", moved));
  }

  void add_attend(const AttendMeasurement& a, DeviceSpec& d) const {
    for (KernelRow row : a.rows) {
      row.source = concat(by_, a.backward ? "backward pass of " : "",
                          "one of 4 heads, as many queries as keys, rows from memory");
      d.attend.push_back(row);
    }
    const AttendFit fit = fit_attend(a.times);
    d.attend_model.push_back(
        {.head_dim = double(a.head_dim),
         .dtype = a.dtype,
         .causal = a.causal,
         .backward = a.backward,
         .block_rows = double(a.backward ? kBackwardBlockRows : kQueryBlockRows),
         .block_s = fit.block_s,
         .query_s = fit.query_s,
         .key_s = fit.key_s,
         .pair_s = fit.pair_s,
         .source = concat(by_, a.backward ? "backward pass, " : "", "fitted to ", a.times.size(),
                          " shapes of 16 to 4096 rows; ", off_text(fit))});
  }

  LinkSpec link(const LinkMeasurement& l, bool inside) const {
    const LinkFit one = fit_link(l.one_way), both = fit_link(l.exchange);
    const std::string sizes =
        concat("fitted to messages of ", format_bytes(l.exchange.front().bytes), " to ",
               format_bytes(l.exchange.back().bytes));
    LinkSpec s;
    // A rank posts two messages per exchange, and the simulator counts those by themselves.
    const double alpha = std::max(0.0, both.alpha_s - 2 * l.overhead_s);
    s.alpha_s = {{alpha, alpha, alpha},
                 concat(by_, "both directions at once, ", sizes, ", less the overhead of two posts",
                        "; ", off_text(both))};
    s.overhead_s = measured(l.overhead_s, "16 exchanges of 1 KiB at once against one, per post");
    s.ports_per_node = {double(m_.ranks_per_node), "one per rank"};
    if (inside) {
      s.bandwidth_bytes_per_s = measured(
          one.bytes_per_s, concat("one direction at a time, ", sizes, "; ", off_text(one)));
      s.shared_bytes_per_s =
          measured(2 * both.bytes_per_s,
                   concat("both directions of a pair together, ", sizes, "; ", off_text(both)));
    } else {
      s.bandwidth_bytes_per_s =
          measured(both.bytes_per_s,
                   concat("each of both directions at once, ", sizes, "; ", off_text(both)));
    }
    return s;
  }

  // The format wants both classes: the one that no rank here uses repeats the other.
  LinkSpec no_link(const LinkMeasurement* other) const {
    LinkSpec s;
    if (other) s = link(*other, false);
    const std::string why = other ? "no two ranks here had such a link: the figure of the other "
                                    "class, for the format only"
                                  : "one rank only: for the format only";
    if (!other) s.bandwidth_bytes_per_s.value = m_.bandwidth;
    s.alpha_s.source = s.bandwidth_bytes_per_s.source = why;
    s.ports_per_node = {double(m_.ranks_per_node), why};
    s.overhead_s = s.shared_bytes_per_s = {};
    return s;
  }

  void set_overlap(ClusterSpec& c) const {
    const OverlapMeasurement& o = m_.overlap;
    c.overlap_efficiency = {1, "one rank: no messages"};
    c.async_progress_source = "one rank: no messages";
    if (o.full_s == 0) return;
    const std::string how =
        concat("ring attention of ", o.seq_len, " tokens, ", format_bytes(o.message_bytes),
               " a message: compute ", format_seconds(o.compute_s), ", messages ",
               format_seconds(o.communication_s), ", both ", format_seconds(o.full_s));
    const std::string short_messages =
        o.too_short() ? "; messages are too short beside compute to tell, so none counts" : "";
    c.async_progress = false;
    c.async_progress_source = concat(by_, how, "; MPI moves messages when its thread looks at them",
                                     " (about each millisecond of an attend)");
    c.async_bytes_per_s =
        measured(o.bytes_per_s_without_progress(),
                 concat(how, "; ", percent(o.hidden_s() / o.communication_s),
                        " of the messages' time hides behind compute", short_messages));
    c.overlap_efficiency =
        measured(o.efficiency(),
                 concat("the same, compute alone over compute beside messages", short_messages));
  }

  const Calibration& m_;
  const Environment& env_;
  std::string by_;
};

}  // namespace

std::string off_text(const FitErrors& errors) {
  return concat("off by ", percent(errors.median_rel_error), " in the median, ",
                percent(errors.max_rel_error), " at most");
}

CalibrationBudget calibration_budget(bool quick) {
  if (!quick) return {};
  constexpr Effort kShort{.seconds = 0.02, .min_runs = 3};
  return {.quick = true,
          .kernel = {.seconds = 0.01, .min_runs = 3},
          .link = kShort,
          .overlap = kShort,
          .model = kShort,
          .head_dims = {64},
          .largest_message_s = 0.02,
          .max_message_bytes = int64_t{1} << 20,
          .bandwidth_array = int64_t{8} << 20,
          .overlap_rows = 512,
          .alone_rounds = 1};
}

Calibration calibrate(World& world, const CalibrationBudget& budget,
                      const std::function<void(const std::string&)>& say) {
  Calibration m{.nodes = count_nodes(world)};
  m.ranks_per_node = world.size() / m.nodes;
  m.threads = int(world.smallest(world.threads_per_rank()));
  say(concat(world.size(), " ranks (", world.transport(), ") on ", m.nodes, " node(s), ", m.threads,
             " thread(s) each: peak and memory bandwidth"));
  m.peak = measure_peak_per_rank(world, m.threads);
  m.bandwidth = world.run([&](Communicator& comm) {
    comm.barrier();
    return comm.sum_of(measure_memory_bandwidth(m.threads, budget.bandwidth_array)) / comm.size();
  });
  say("kernels");
  m.kernel =
      world.run([&](Communicator& comm) { return measure_kernels(comm, m.threads, budget); });
  say("training steps of models");
  m.model = world.run([&](Communicator& comm) { return measure_model(comm, m.threads, budget); });
  say("one rank alone against all at work");
  if (world.size() > 1) m.alone_speed = measure_alone_speed(world, m.threads, budget);
  if (world.size() == 1) return m;
  say("links, and messages while ranks compute");
  const auto link_to = [&](Rank other) {
    return world.run([&](Communicator& comm) { return measure_link(comm, 0, other, budget); });
  };
  if (m.has_intra()) m.intra = link_to(1);
  if (m.has_inter()) m.inter = link_to(m.ranks_per_node);
  m.overlap =
      world.run([&](Communicator& comm) { return measure_overlap(comm, m.threads, budget); });
  return m;
}

ClusterSpec to_cluster(const Calibration& calibration, const World& world, const Environment& env,
                       const std::string& name) {
  return ClusterWriter(calibration, world, env).cluster(name);
}

}  // namespace longnet
