#include "simgrid_oracle/simgrid_replay.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <simgrid/s4u.hpp>

#include "core/check.h"

namespace longnet {
namespace {

namespace sg4 = simgrid::s4u;

constexpr uint32_t kLaneShift = 30, kIndexMask = (1u << kLaneShift) - 1;

class Replay {
 public:
  Replay(const ProgramSet& programs, const Topology& topology, ExecutionKind execution)
      : programs_(programs),
        topology_(topology),
        message_lane_(execution == ExecutionKind::kStreams ? 2 : 0) {}

  double run() {
    char name[] = "simgrid_oracle", quiet[] = "--log=xbt_cfg.thres:warning";
    char* argv[] = {name, quiet, nullptr};
    int argc = 2;
    sg4::Engine engine(&argc, argv);
    for (const char* option :
         {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:1e15",
          "network/weight-S:0", "surf/precision:1e-12", "maxmin/precision:1e-12"})
      sg4::Engine::set_config(option);
    build_platform();
    start_actors();
    engine.run();
    return makespan_;
  }

 private:
  struct Channel {
    Rank from, to;
    double alpha;
    std::vector<double> sent{}, received{}, bytes{};  // posts, in order
    std::vector<uint32_t> send_ops{}, recv_ops{};
    int messages = 0;
    sg4::SemaphorePtr send_posted, recv_posted;
  };

  void build_platform() {
    auto* zone = sg4::create_full_zone("cluster");
    for (int p = 0; p < programs_.ranks; ++p)
      hosts_.push_back(zone->create_host("gpu" + std::to_string(p), 1e9)->seal());
    std::vector<const sg4::Link*> links;
    for (int i = 0; i < topology_.num_links(); ++i)
      links.push_back(zone->create_link("link" + std::to_string(i), topology_.capacity(i))
                          ->set_latency(0)
                          ->seal());
    for (Rank p = 0; p < programs_.ranks; ++p)
      for (const int offset : programs_.of(p).out_offsets) {
        const Rank to = programs_.at(p, offset);
        const Route route = topology_.route(p, to);
        std::vector<sg4::LinkInRoute> path;
        for (const int link : route) path.emplace_back(links[size_t(link)]);
        zone->add_route(hosts_[size_t(p)]->get_netpoint(), hosts_[size_t(to)]->get_netpoint(),
                        nullptr, nullptr, path, /*symmetrical=*/false);
        channels_[{p, to}] =
            std::make_unique<Channel>(Channel{.from = p,
                                              .to = to,
                                              .alpha = topology_.alpha_s(route, AlphaSet::kIdeal),
                                              .send_posted = sg4::Semaphore::create(0),
                                              .recv_posted = sg4::Semaphore::create(0)});
      }
    zone->seal();
  }

  void start_actors() {
    ready_.resize(size_t(programs_.ranks) * kLanes);
    for (Rank p = 0; p < programs_.ranks; ++p)
      for (int lane = 0; lane < kLanes; ++lane)
        for (const CompactOp& op : programs_.of(p).lanes[size_t(lane)]) {
          ready_[size_t(p * kLanes + lane)].push_back(op.needs > 0 ? sg4::Semaphore::create(0)
                                                                   : nullptr);
          if (op.kind == OpKind::kSend) ++channels_.at({p, peer_of(p, op)})->messages;
        }
    for (Rank p = 0; p < programs_.ranks; ++p)
      for (int lane = 0; lane < kLanes; ++lane)
        if (!programs_.of(p).lanes[size_t(lane)].empty())
          sg4::Actor::create("lane", hosts_[size_t(p)], [this, p, lane] { run_lane(p, lane); });
    for (auto& [pair, channel] : channels_)
      sg4::Actor::create("carrier", hosts_[size_t(pair.first)],
                         [this, c = channel.get()] { carry(*c); });
  }

  Rank peer_of(Rank p, const CompactOp& op) const {
    const CompactProgram& program = programs_.of(p);
    const auto& offsets = op.kind == OpKind::kSend ? program.out_offsets : program.in_offsets;
    return programs_.at(p, offsets[size_t(op.peer)]);
  }

  void run_lane(Rank p, int lane) {
    const auto& ops = programs_.of(p).lanes[size_t(lane)];
    for (uint32_t i = 0; i < ops.size(); ++i) {
      const CompactOp& op = ops[i];
      for (uint32_t n = 0; n < op.needs; ++n) ready_[size_t(p * kLanes + lane)][i]->acquire();
      if (op.kind == OpKind::kSend) {
        Channel& c = *channels_.at({p, peer_of(p, op)});
        c.sent.push_back(sg4::Engine::get_clock());
        c.bytes.push_back(op.amount);
        c.send_ops.push_back(i);
        c.send_posted->release();
      } else if (op.kind == OpKind::kRecv) {
        Channel& c = *channels_.at({peer_of(p, op), p});
        c.received.push_back(sg4::Engine::get_clock());
        c.recv_ops.push_back(i);
        c.recv_posted->release();
      } else {
        sg4::this_actor::sleep_for(op.amount);
        finish(p, op);
      }
    }
  }

  void carry(Channel& c) {
    for (int k = 0; k < c.messages; ++k) {
      c.send_posted->acquire();
      c.recv_posted->acquire();
      const double ready = std::max(c.sent[size_t(k)], c.received[size_t(k)]) + c.alpha;
      if (ready > sg4::Engine::get_clock()) sg4::this_actor::sleep_until(ready);
      sg4::Comm::sendto(hosts_[size_t(c.from)], hosts_[size_t(c.to)], uint64_t(c.bytes[size_t(k)]));
      const auto& lane = size_t(message_lane_);
      finish(c.from, programs_.of(c.from).lanes[lane][c.send_ops[size_t(k)]]);
      finish(c.to, programs_.of(c.to).lanes[lane][c.recv_ops[size_t(k)]]);
    }
  }

  void finish(Rank p, const CompactOp& op) {
    makespan_ = std::max(makespan_, sg4::Engine::get_clock());
    for (uint32_t i = 0; i < op.num_next; ++i) {
      const uint32_t next = programs_.of(p).next[op.first_next + i];
      ready_[size_t(p) * kLanes + (next >> kLaneShift)][next & kIndexMask]->release();
    }
  }

  const ProgramSet& programs_;
  const Topology& topology_;
  int message_lane_;
  std::vector<sg4::Host*> hosts_;
  std::map<std::pair<Rank, Rank>, std::unique_ptr<Channel>> channels_;
  std::vector<std::vector<sg4::SemaphorePtr>> ready_;
  double makespan_ = 0;
};

}  // namespace

double simgrid_makespan(const ProgramSet& programs, const Topology& topology,
                        ExecutionKind execution) {
  std::cout << std::flush;  // else the child has a copy of the unwritten text
  int pipe_ends[2];
  check(pipe(pipe_ends) == 0, "no pipe");
  const pid_t child = fork();
  check(child >= 0, "no process");
  if (child == 0) {
    const double seconds = Replay(programs, topology, execution).run();
    const bool written = write(pipe_ends[1], &seconds, sizeof seconds) == sizeof seconds;
    _exit(written ? 0 : 1);
  }
  close(pipe_ends[1]);
  double seconds = 0;
  const bool got = read(pipe_ends[0], &seconds, sizeof seconds) == sizeof seconds;
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  check(got && status == 0, "SimGrid's process ended with status ", status);
  return seconds;
}

}  // namespace longnet
