#include "simulate/network.h"

#include <algorithm>
#include <limits>
#include <span>

#include "core/check.h"
#include "simulate/pool.h"

namespace longnet {

Network::Network(const Topology& topology, AlphaSet alpha, int simulated, const Kind& kind)
    : topology_(topology),
      alpha_(alpha),
      simulated_(simulated),
      kind_(kind),
      channels_of_(size_t(simulated)),
      progresses_(size_t(simulated), true),
      flowing_(size_t(simulated), 0) {}

uint32_t Network::speed_of(const Speed& speed) {
  const auto known = std::ranges::find(speeds_, speed);
  if (known == speeds_.end()) return speeds_.push_back(speed), uint32_t(speeds_.size()) - 1;
  return uint32_t(known - speeds_.begin());
}

uint32_t Network::add_channel(Rank from, Rank to) {
  const Route route = topology_.route(from, to);
  const auto first_link = uint32_t(links_.size());
  double rate = std::numeric_limits<double>::infinity();
  for (const int link : route) {
    rate = std::min(rate, topology_.capacity(link));
    links_.push_back(topology_.representative(link, simulated_));
  }
  const double most = topology_.pair_bytes_per_s(route);
  if (most > 0 && most < rate) rate = most;
  channels_.push_back({.sender = uint32_t(from),
                       .receiver = uint32_t(to % simulated_),
                       .speed = speed_of({.alpha = topology_.alpha_s(route, alpha_),
                                          .seconds_per_byte = 1 / rate,
                                          .overhead = topology_.overhead_s(route)}),
                       .first_link = first_link,
                       .num_links = uint16_t(route.count)});
  receivers_.push_back(to);
  return uint32_t(channels_.size()) - 1;
}

// A link that all its channels together cannot fill slows none of them.
void Network::seal() {
  std::vector<double> capacities = topology_.capacities(), asked(capacities.size(), 0);
  const auto first_slow_link = int(capacities.size());  // one per simulated rank
  if (is_slowed())
    capacities.resize(capacities.size() + size_t(simulated_),
                      std::numeric_limits<double>::infinity());
  for (const Channel& c : channels_)
    for (const int link : links_of(c)) asked[size_t(link)] += 1 / speeds_[c.speed].seconds_per_byte;
  std::vector<int> links;
  size_t most_links = 0;
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& c = channels_[i];
    const size_t first = links.size();
    for (const int link : links_of(c)) {
      if (asked[size_t(link)] > capacities[size_t(link)] * kSameRate) links.push_back(link);
    }
    c.alone = links.size() == first && !kind_.pauses;
    c.timed = c.alone && kind_.alone_is_fast;
    if (is_slowed())
      for (const uint32_t rank : {c.sender, c.receiver})
        links.push_back(first_slow_link + int(rank));
    c.first_link = uint32_t(first);
    c.num_links = uint16_t(links.size() - first);
    most_links = std::max(most_links, links.size() - first);
    if (!kind_.pauses) continue;
    channels_of_[c.sender].push_back(uint32_t(i));
    channels_of_[c.receiver].push_back(uint32_t(i));
  }
  links_ = std::move(links);
  share_ = FairShare(capacities, int(most_links));
}

void Network::post(uint32_t channel, const MessageSide& side, double bytes, bool is_send) {
  Channel& c = channels_[channel];
  if (c.first == kNoSlot || c.holds_sends == is_send) {
    const uint32_t id = take_slot(posted_, free_posted_);
    posted_[id] = {side, bytes, kNoSlot};
    append(posted_, id, c.first, c.last);
    __builtin_prefetch(links_.data() + c.first_link);  // or past the end
    c.holds_sends = is_send;
    return;
  }
  const Posted other = posted_[c.first];
  free_posted_.push_back(c.first);
  c.first = other.next;
  check(other.bytes == bytes, "a message from rank ", c.sender, " to rank ", receivers_[channel],
        " has ", is_send ? bytes : other.bytes, " bytes on one side and ",
        is_send ? other.bytes : bytes, " on the other");
  start(channel, is_send ? side : other.side, is_send ? other.side : side, bytes);
}

void Network::start(uint32_t channel, const MessageSide& send, const MessageSide& recv,
                    double bytes) {
  ++messages;
  Channel& c = channels_[channel];
  const Speed& speed = speeds_[c.speed];
  const double ready = std::max(send.posted_s, recv.posted_s) + speed.alpha;
  if (c.timed) {
    c.free_at = std::max(ready, c.free_at) + bytes * speed.seconds_per_byte;
    done(send, recv, c.free_at);
    return;
  }
  shared_messages += !c.alone;
  const uint32_t id = take_slot(messages_, free_messages_);
  messages_[id] = {.send = send, .recv = recv, .bytes = bytes, .channel = channel};
  events_.push(ready, EventKind::kLatencyOver, id);
}

void Network::latency_over(uint32_t message, double now) {
  Channel& c = channels_[messages_[message].channel];
  if (c.message == kNoSlot) return begin_flow(message, now);
  append(messages_, message, c.queue_first, c.queue_last);
}

void Network::begin_flow(uint32_t message, double now) {
  const Message& m = messages_[message];
  Channel& c = channels_[m.channel];
  c.message = message;
  c.left = m.bytes;
  if (may_flow(c)) run_flow(m.channel, now);
}

void Network::run_flow(uint32_t channel, double now) {
  Channel& c = channels_[channel];
  const double rate = 1 / speeds_[c.speed].seconds_per_byte;
  c.flow = share_.start(links_of(c), rate);
  if (c.flow == flows_.size()) flows_.emplace_back();
  Flowing& flow = flows_[c.flow];
  flow = {.channel = channel,
          .version = flow.version + 1,
          .since = now,
          .left = c.left,
          .negligible = 1e-9 * messages_[c.message].bytes};
  if (share_.rate(c.flow) > 0) {
    flow.rate = rate;
    flow.end = now + c.left * speeds_[c.speed].seconds_per_byte;
    push_end(c.flow);
  }
  count_flowing(Rank(c.sender), 1, now);
  count_flowing(Rank(c.receiver), 1, now);
}

void Network::pause_flow(uint32_t channel, double now) {
  Channel& c = channels_[channel];
  Flowing& flow = flows_[c.flow];
  c.left = flow.left_at(now);
  share_.stop(c.flow);
  ++flow.version;  // its end is not known any more
  c.flow = kNoSlot;
  count_flowing(Rank(c.sender), -1, now);
  count_flowing(Rank(c.receiver), -1, now);
}

void Network::count_flowing(Rank rank, int change, double now) {
  if (!flowing_changed) return;
  int& count = flowing_[size_t(rank)];
  const bool before = count > 0;
  count += change;
  if (before != (count > 0)) flowing_changed(rank, now);
}

void Network::flow_ends(FairShare::Flow flow, uint32_t version, double now) {
  if (flows_[flow].version != version) return;
  const uint32_t channel = flows_[flow].channel;
  pause_flow(channel, now);
  Channel& c = channels_[channel];
  const Message m = messages_[c.message];
  free_messages_.push_back(c.message);
  c.message = kNoSlot;
  if (const uint32_t next = c.queue_first; next != kNoSlot) {
    c.queue_first = messages_[next].next;
    begin_flow(next, now);
  }
  done(m.send, m.recv, now);
}

void Network::push_end(FairShare::Flow flow) {
  Flowing& f = flows_[flow];
  f.foretold = true;
  events_.push(f.end, EventKind::kFlowEnds, flow, f.version);
}

// New ends of flows that are connected. Only the first ones are events: when they come, the others
// are looked at again.
void Network::foretell(std::span<const FairShare::Flow> flows, double now) {
  double first = std::numeric_limits<double>::infinity();
  for (const FairShare::Flow flow : flows) {
    Flowing& f = flows_[flow];
    if (const double rate = share_.rate(flow); rate != f.rate) {
      f.left = f.left_at(now);
      f.since = now;
      f.rate = rate;
      f.end = now + f.left / rate;
      f.foretold = false;
      ++f.version;
    }
    first = std::min(first, f.end);
  }
  for (const FairShare::Flow flow : flows)
    if (!flows_[flow].foretold && is_same_time(flows_[flow].end, first)) push_end(flow);
}

void Network::settle(double now) {
  share_.update([&](std::span<const FairShare::Flow> flows) { foretell(flows, now); });
}

void Network::set_progress(Rank rank, bool progresses, double now) {
  if (progresses_[size_t(rank)] == progresses) return;
  progresses_[size_t(rank)] = progresses;
  if (is_slowed())
    return share_.set_capacity(
        topology_.num_links() + int(rank),
        progresses ? std::numeric_limits<double>::infinity() : kind_.bytes_per_s_without_progress);
  for (const uint32_t channel : channels_of_[size_t(rank)]) {
    const Channel& c = channels_[channel];
    if (c.message == kNoSlot) continue;
    const bool flows = c.flow != kNoSlot, may = may_flow(c);
    if (flows && flows_[c.flow].left_at(now) == 0) continue;  // its end is the next event
    if (may && !flows) run_flow(channel, now);
    if (!may && flows) pause_flow(channel, now);
  }
}

}  // namespace longnet
