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
      first_slow_link_(topology.num_links()),
      channels_of_(size_t(simulated)),
      progresses_(size_t(simulated), true),
      flowing_(size_t(simulated), 0),
      share_(topology.capacities()) {
  for (int i = 0; is_slowed() && i < simulated; ++i)
    share_.add_link(std::numeric_limits<double>::infinity());
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
  channels_.push_back({.sender = uint32_t(from % simulated_),
                       .receiver = uint32_t(to % simulated_),
                       .alpha = topology_.alpha_s(route, alpha_),
                       .seconds_per_byte = 1 / rate,
                       .overhead = topology_.overhead_s(route)});
  ends_.push_back({from, to, first_link, uint32_t(links_.size()) - first_link});
  return uint32_t(channels_.size()) - 1;
}

// A link that all its channels together cannot fill slows none of them. A channel that crosses
// others is limited by them and by its own fastest rate.
void Network::seal() {
  std::vector<double> asked(size_t(topology_.num_links()), 0);
  const auto route_of = [&](const Ends& e) {
    return std::span(links_).subspan(e.first_link, e.num_links);
  };
  for (size_t i = 0; i < channels_.size(); ++i)
    for (const int link : route_of(ends_[i]))
      asked[size_t(link)] += 1 / channels_[i].seconds_per_byte;
  std::vector<int> crossed;
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& c = channels_[i];
    const double rate = 1 / c.seconds_per_byte;
    crossed.clear();
    bool limited = false;
    for (const int link : route_of(ends_[i])) {
      const double capacity = topology_.capacity(link);
      if (asked[size_t(link)] <= capacity * (1 + 1e-12)) continue;
      crossed.push_back(link);
      limited = limited || capacity <= rate;
    }
    c.alone = crossed.empty() && !kind_.pauses;
    c.timed = c.alone && kind_.alone_is_fast;
    if (!limited && !c.alone) crossed.push_back(share_.add_link(rate));
    if (is_slowed())
      for (const uint32_t rank : {c.sender, c.receiver})
        crossed.push_back(first_slow_link_ + int(rank));
    share_.add(crossed);
    if (!kind_.pauses) continue;
    channels_of_[c.sender].push_back(uint32_t(i));
    channels_of_[c.receiver].push_back(uint32_t(i));
  }
}

void Network::post(uint32_t channel, const MessageSide& side, double bytes, bool is_send) {
  Channel& c = channels_[channel];
  if (c.first == kNoSlot || c.holds_sends == is_send) {
    const uint32_t id = take_slot(posted_, free_posted_);
    posted_[id] = {side, bytes, kNoSlot};
    append(posted_, id, c.first, c.last);
    c.holds_sends = is_send;
    return;
  }
  const Posted other = posted_[c.first];
  free_posted_.push_back(c.first);
  c.first = other.next;
  const auto [from, to] = std::pair(ends_[channel].from, ends_[channel].to);
  check(other.bytes == bytes, "a message from rank ", from, " to rank ", to, " has ",
        is_send ? bytes : other.bytes, " bytes on one side and ", is_send ? other.bytes : bytes,
        " on the other");
  start(channel, is_send ? side : other.side, is_send ? other.side : side, bytes);
}

void Network::start(uint32_t channel, const MessageSide& send, const MessageSide& recv,
                    double bytes) {
  ++messages;
  Channel& c = channels_[channel];
  const double ready = std::max(send.posted_s, recv.posted_s) + c.alpha;
  if (c.timed) {
    c.free_at = std::max(ready, c.free_at) + bytes * c.seconds_per_byte;
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
  c.since = now;
  if (c.alone) {
    events_.push(now + c.left * c.seconds_per_byte, EventKind::kFlowEnds, channel, ++c.version);
  } else {
    c.shares = true;
    c.rate = 0;
    share_.start(channel);
  }
  count_flowing(Rank(c.sender), 1, now);
  count_flowing(Rank(c.receiver), 1, now);
}

void Network::pause_flow(uint32_t channel, double now) {
  Channel& c = channels_[channel];
  if (c.shares) {
    c.left -= c.rate * (now - c.since);
    c.shares = false;
    share_.stop(channel);
    ++c.version;  // its end is not known any more
  }
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

void Network::flow_ends(uint32_t channel, uint32_t version, double now) {
  Channel& c = channels_[channel];
  if (c.version != version) return;
  pause_flow(channel, now);
  const Message m = messages_[c.message];
  free_messages_.push_back(c.message);
  c.message = kNoSlot;
  if (const uint32_t next = c.queue_first; next != kNoSlot) {
    c.queue_first = messages_[next].next;
    begin_flow(next, now);
  }
  done(m.send, m.recv, now);
}

void Network::settle(double now) {
  for (const FairShare::Flow channel : share_.update()) {
    Channel& c = channels_[channel];
    c.left -= c.rate * (now - c.since);
    // Over at this very moment, but for rounding.
    if (c.left <= 1e-9 * messages_[c.message].bytes) c.left = 0;
    c.since = now;
    c.rate = share_.rate(channel);
    events_.push(now + c.left / c.rate, EventKind::kFlowEnds, channel, ++c.version);
  }
}

void Network::set_progress(Rank rank, bool progresses, double now) {
  if (progresses_[size_t(rank)] == progresses) return;
  progresses_[size_t(rank)] = progresses;
  if (is_slowed())
    return share_.set_capacity(
        first_slow_link_ + int(rank),
        progresses ? std::numeric_limits<double>::infinity() : kind_.bytes_per_s_without_progress);
  for (const uint32_t channel : channels_of_[size_t(rank)]) {
    const Channel& c = channels_[channel];
    if (c.message == kNoSlot) continue;
    // Over at this very moment, but for rounding: its end is the next event.
    const double left = c.left - c.rate * (now - c.since);
    if (c.shares && left <= 1e-9 * messages_[c.message].bytes) continue;
    const bool may = may_flow(c);
    if (may && !c.shares) run_flow(channel, now);
    if (!may && c.shares) pause_flow(channel, now);
  }
}

}  // namespace longnet
