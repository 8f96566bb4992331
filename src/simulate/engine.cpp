#include "simulate/engine.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/stopwatch.h"
#include "simulate/gatherings.h"
#include "simulate/lanes.h"
#include "simulate/network.h"

namespace longnet {
namespace {

class Engine {
 public:
  Engine(const ProgramSet& programs, const Topology& topology, const ClusterSpec& cluster,
         const SimulateOptions& options)
      : programs_(programs),
        options_(options),
        ranks_(simulated_ranks(programs, topology, options)),
        overlap_(cluster.overlap_efficiency.value),
        async_(cluster.async_progress),
        timed_(overlap_ < 1 || !async_),
        message_lane_(cluster.execution == ExecutionKind::kStreams ? 2 : 0),
        network_(topology, ranks_,
                 {.alone_is_fast = !timed_,
                  .pauses = !async_,
                  .bytes_per_s_without_progress = async_ ? 0 : cluster.async_bytes_per_s.value}),
        gatherings_(programs, ranks_),
        lanes_(programs, ranks_),
        works_(timed_ ? lanes_.size() : 0) {
    run_.ranks.resize(size_t(ranks_));
    for (Rank p = 0; p < ranks_; ++p) slow_.push_back(options.straggler.is(p, programs.ranks));
    add_channels(cluster);
    network_.done = [this](const MessageSide& s, const MessageSide& r, double end) {
      message_done(s, r, end);
    };
    if (overlap_ < 1)
      network_.flowing_changed = [this](Rank rank, double now) {
        Lane& attention = lanes_[size_t(rank) * kLanes];
        if (attention.busy) retime(attention, now);
      };
  }

  SimulatedRun run() {
    const double begin = thread_cpu_seconds();
    for (Lane& lane : lanes_) lanes_.wake(lane);
    drain(0);
    EventQueue& events = network_.events();
    network_.settle(0);
    constexpr int64_t kRoundsOfALook = 256;
    for (int64_t rounds = 0; !events.empty();) {
      const double now = events.next_time();
      // One round of sharing for all that happens together.
      while (!events.empty() && is_same_time(events.next_time(), now)) {
        handle(events.pop(), now);
        drain(now);
      }
      network_.settle(now);
      if (++rounds % kRoundsOfALook == 0 && thread_cpu_seconds() - begin > options_.most_cpu_s)
        throw UsageError("takes more than ", options_.most_cpu_s, " s to simulate: ", ranks_,
                         " ranks that do not do the same");
    }
    check_all_done();
    for (const Lane& lane : lanes_) {
      double& finish = run_.ranks[lane.rank].finish_s;
      finish = std::max(finish, lane.finish);
      run_.makespan_s = std::max(run_.makespan_s, finish);
    }
    run_.messages = network_.messages;
    run_.shared_messages = network_.shared_messages;
    run_.cpu_s = thread_cpu_seconds() - begin;
    return std::move(run_);
  }

 private:
  // The op at work in a lane, where events time it (timed_): its `left` seconds at `since`.
  struct Work {
    double left = 0, rate = 1, since = 0, begun = 0;
    double event_s = 0;  // time of the one event that is still true; no later than the op's end
    uint32_t version = 0;
    double end() const { return since + left / rate; }
  };

  void add_channels(const ClusterSpec& cluster) {
    uint32_t channels = 0;
    for (Rank p = 0; p < ranks_; ++p) {
      out_base_.push_back(channels);
      const CompactProgram& program = programs_.of(p);
      for (size_t i = 0; i < program.out_offsets.size(); ++i) {
        const Rank to = programs_.at(p, program.out_offsets[i]);
        const NcclChannels of_pair =
            nccl_channels(cluster, programs_.communicators, p, to, program.largest_tensors[i]);
        const bool simple = options_.alpha == AlphaSet::kNcclLl && of_pair.by_simple;
        channels = 1 + network_.add_channel(p, to, simple ? AlphaSet::kNcclSimple : options_.alpha,
                                            of_pair.bytes_per_s);
      }
    }
    network_.seal();
    for (Rank p = 0; p < ranks_; ++p) {
      in_base_.push_back(uint32_t(in_channels_.size()));
      for (const int offset : programs_.of(p).in_offsets) {
        const Rank sender = programs_.at(p, offset) % ranks_;
        const int at = index_in(programs_.of(sender).out_offsets, programs_.back(offset));
        check(at >= 0, "rank ", p, " receives from rank ", sender, ", which never sends to it");
        in_channels_.push_back(out_base_[size_t(sender)] + uint32_t(at));
      }
    }
  }

  void drain(double now) {
    while (Lane* lane = lanes_.take_awake()) advance(*lane, now);
  }

  void advance(Lane& lane, double now) {
    while (lane.cursor < lane.num_ops && !lane.busy) {
      if (!lanes_.can_begin(lane)) return;
      const double issued = lane.issued_s ? lane.issued_s[lane.cursor] : 0;
      const double begin = std::max({lane.free, lanes_.ready_s(lane), issued});
      if (waits_for_events(lane.ops[lane.cursor].kind) && !is_same_time(begin, now))
        return network_.events().push(begin, EventKind::kCanBegin, lanes_.id_of(lane));
      execute(lane, lanes_.take_op(lane), begin);
    }
  }

  // Returns whether an op begins by an event at its time. Messages of ranks with progress of their
  // own are posted ahead of the clock.
  bool waits_for_events(OpKind kind) const {
    return timed_ && !(async_ && (kind == OpKind::kSend || kind == OpKind::kRecv));
  }

  double seconds_of(const Lane& lane, const CompactOp& op) const {
    if (options_.without_compute) return 0;
    const bool slow = slow_[lane.rank] && op.kind != OpKind::kPack;
    return slow ? op.amount * (1 + options_.straggler.slower) : op.amount;
  }

  void execute(Lane& lane, uint32_t index, double begin) {
    const CompactOp& op = lane.ops[index];
    if (op.kind == OpKind::kCollective) {
      lane.free = begin;
      gather(lane, index, begin);
    } else if (is_communication(op.kind)) {
      const uint32_t channel = channel_of(lane, op);
      // The channel of the next op would come too late from memory, the one behind it in time.
      if (network_.is_large() && index + 2 < lane.num_ops)
        if (const CompactOp& soon = lane.ops[index + 2];
            is_communication(soon.kind) && soon.kind != OpKind::kCollective)
          network_.expect(channel_of(lane, soon));
      const double overhead = network_.overhead_s(channel);
      if (waits_for_events(op.kind) && overhead > 0) return occupy(lane, begin, overhead);
      lane.free = begin + overhead;
      post(channel, lane, index, lane.free);
    } else if (timed_) {
      occupy(lane, begin, seconds_of(lane, op));
    } else {
      lane.free = begin + seconds_of(lane, op);
      compute_done(lane, index, begin, lane.free);
    }
  }

  uint32_t channel_of(const Lane& lane, const CompactOp& op) const {
    return op.kind == OpKind::kSend ? out_base_[lane.rank] + uint32_t(op.peer)
                                    : in_channels_[in_base_[lane.rank] + uint32_t(op.peer)];
  }

  void post(uint32_t channel, const Lane& lane, uint32_t index, double at) {
    const CompactOp& op = lane.ops[index];
    network_.post(channel, {lane.rank, index, at}, op.amount, op.kind == OpKind::kSend);
  }

  void gather(const Lane& lane, uint32_t index, double at) {
    const CompactOp& op = lane.ops[index];
    const uint32_t number = gatherings_.number_of(lane.rank, op.peer);
    if (!gatherings_.arrive(number, {lanes_.id_of(lane), index, at})) return;
    const CompactCollective& collective =
        programs_.of(Rank(lane.rank)).collectives[size_t(op.peer)];
    const double end = gatherings_[number].ready_s + collective.seconds[size_t(options_.alpha)];
    if (!timed_) return gathered(number, end);
    for (const auto& member : gatherings_[number].members)
      network_.count_flowing(Rank(lanes_[member.lane].rank), 1, at);
    network_.events().push(end, EventKind::kCollectiveEnds, number);
  }

  void gathered(uint32_t number, double end) {
    const Gatherings::Gathering& g = gatherings_[number];
    for (const Gatherings::Member& member : g.members) {
      Lane& lane = lanes_[member.lane];
      const CompactOp& op = lane.ops[member.index];
      if (timed_) network_.count_flowing(Rank(lane.rank), -1, end);
      if (options_.timeline)
        run_.timeline.push_back({.rank = Rank(lane.rank),
                                 .kind = op.kind,
                                 .posted_s = member.posted_s,
                                 .begin_s = g.ready_s,
                                 .end_s = end});
      lanes_.complete(lane, op, end);
    }
  }

  void message_done(const MessageSide& send, const MessageSide& recv, double end) {
    for (const MessageSide* side : {&send, &recv}) {
      Lane& l = lanes_[side->rank * kLanes + message_lane_];
      const CompactOp& op = l.ops[side->index];
      if (options_.timeline)
        run_.timeline.push_back({.rank = Rank(side->rank),
                                 .kind = op.kind,
                                 .posted_s = side->posted_s,
                                 .begin_s = std::max(send.posted_s, recv.posted_s),
                                 .end_s = end,
                                 .peer = Rank(side == &send ? recv.rank : send.rank),
                                 .bytes = op.amount});
      lanes_.complete(l, op, end);
    }
  }

  void compute_done(Lane& lane, uint32_t index, double begin, double end) {
    const CompactOp& op = lane.ops[index];
    SimulatedRank& rank = run_.ranks[lane.rank];
    (op.kind == OpKind::kMerge     ? rank.merge_s
     : op.kind == OpKind::kPack    ? rank.pack_s
     : op.kind == OpKind::kGemm    ? rank.gemm_s
     : op.kind == OpKind::kRowWise ? rank.row_wise_s
     : op.kind == OpKind::kUpdate  ? rank.update_s
                                   : rank.attend_s) += end - begin;
    if (options_.timeline)
      run_.timeline.push_back({.rank = Rank(lane.rank),
                               .kind = op.kind,
                               .posted_s = begin,
                               .begin_s = begin,
                               .end_s = end,
                               .branch = is_attend(op.kind) ? op.peer : -1});
    lanes_.complete(lane, op, end);
  }

  // ---- ops whose end depends on what else happens ----

  void occupy(Lane& lane, double begin, double seconds) {
    const uint32_t id = lanes_.id_of(lane);
    Work& work = works_[id];
    lane.busy = true;
    work.left = seconds;
    work.begun = work.since = begin;
    work.rate = rate_of(lane);
    if (!async_) network_.set_progress(Rank(lane.rank), false, begin);
    push_end(id);
  }

  double rate_of(const Lane& lane) const {
    return lane.lane == 0 && network_.flowing(Rank(lane.rank)) > 0 ? overlap_ : 1;
  }

  void push_end(uint32_t id) {
    Work& work = works_[id];
    work.event_s = work.end();
    network_.events().push(work.event_s, EventKind::kLaneEnds, id, ++work.version);
  }

  void retime(const Lane& lane, double now) {
    const uint32_t id = lanes_.id_of(lane);
    Work& work = works_[id];
    work.left = std::max(0.0, work.left - work.rate * (now - work.since));
    work.since = now;
    work.rate = rate_of(lane);
    // One that ends later than its event is looked at when that comes.
    if (work.end() < work.event_s) push_end(id);
  }

  void lane_ends(Lane& lane, uint32_t version, double now) {
    const uint32_t id = lanes_.id_of(lane);
    const Work& work = works_[id];
    if (work.version != version || !lane.busy) return;
    if (!is_same_time(work.end(), now)) return push_end(id);
    lane.busy = false;
    lane.free = now;
    const uint32_t index = lane.cursor - 1;
    if (!async_) network_.set_progress(Rank(lane.rank), true, now);
    if (const CompactOp& op = lane.ops[index]; is_communication(op.kind))
      post(channel_of(lane, op), lane, index, now);
    else
      compute_done(lane, index, work.begun, now);
    lanes_.wake(lane);
  }

  void handle(const QueuedEvent& e, double now) {
    switch (e.kind) {
      case EventKind::kLatencyOver:
        return network_.latency_over(e.id, now);
      case EventKind::kFlowEnds:
        return network_.flow_ends(e.id, e.version, now);
      case EventKind::kLaneEnds:
        return lane_ends(lanes_[e.id], e.version, now);
      case EventKind::kCanBegin:
        return lanes_.wake(lanes_[e.id]);
      case EventKind::kCollectiveEnds:
        return gathered(e.id, now);
    }
  }

  void check_all_done() const {
    for (const Lane& lane : lanes_) {
      check(lane.cursor == lane.num_ops && !lane.busy, "deadlock: rank ", lane.rank,
            " waits in op ", lane.cursor, " of ", lane.num_ops, " of lane ", int{lane.lane}, " (",
            lane.cursor < lane.num_ops ? to_string(lane.ops[lane.cursor].kind) : "end", ")");
    }
  }

  const ProgramSet& programs_;
  SimulateOptions options_;
  int ranks_;
  double overlap_;
  bool async_;
  bool timed_;  // messages and compute slow each other: events time both
  uint32_t message_lane_;
  Network network_;
  Gatherings gatherings_;
  Lanes lanes_;
  std::vector<Work> works_;  // by lane
  std::vector<bool> slow_;   // by rank
  // Channels: a rank's outgoing ones follow each other, its incoming ones are listed.
  std::vector<uint32_t> out_base_, in_base_, in_channels_;
  SimulatedRun run_;
};

}  // namespace

int simulated_ranks(const ProgramSet& programs, const Topology& topology,
                    const SimulateOptions& options) {
  if (!options.collapse || (programs.exclusive_or && topology.is_torus())) return programs.ranks;
  const int64_t slow = options.straggler.period(programs.ranks);
  const int64_t block =
      std::lcm(std::lcm(int64_t{programs.period}, int64_t{topology.period()}), slow);
  return block < programs.ranks && programs.ranks % block == 0 ? int(block) : programs.ranks;
}

SimulatedRun simulate(const ProgramSet& programs, const Topology& topology,
                      const ClusterSpec& cluster, const SimulateOptions& options) {
  check(topology.ranks() == programs.ranks, "a topology of ", topology.ranks(), " ranks for ",
        programs.ranks);
  return Engine(programs, topology, cluster, options).run();
}

}  // namespace longnet
