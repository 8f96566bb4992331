#include "simulate/network.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "simulate/pool.h"

namespace longnet {
namespace {

std::vector<double> capacities(const Topology& t, int simulated, double slow_bytes_per_s) {
  std::vector<double> out;
  for (int i = 0; i < t.num_links(); ++i) out.push_back(t.capacity(i));
  if (slow_bytes_per_s > 0) out.resize(out.size() + size_t(simulated), slow_bytes_per_s);
  return out;
}

}  // namespace

Network::Network(const Topology& topology, AlphaSet alpha, int simulated, const Kind& kind)
    : topology_(topology),
      alpha_(alpha),
      simulated_(simulated),
      kind_(kind),
      first_slow_link_(topology.num_links()),
      flows_of_(size_t(simulated)),
      progresses_(size_t(simulated), true),
      flowing_(size_t(simulated), 0),
      share_(capacities(topology, simulated, kind.bytes_per_s_without_progress)) {}

uint32_t Network::add_channel(Rank from, Rank to) {
  const Route route = topology_.route(from, to);
  double rate = std::numeric_limits<double>::infinity();
  for (const int link : route) rate = std::min(rate, topology_.capacity(link));
  const double most = topology_.pair_bytes_per_s(route);
  const bool limited = most > 0 && most < rate;
  channels_.push_back({.from = from,
                       .to = to,
                       .sender = uint32_t(from % simulated_),
                       .receiver = uint32_t(to % simulated_),
                       .alpha = topology_.alpha_s(route, alpha_),
                       .seconds_per_byte = 1 / (limited ? most : rate),
                       .overhead = topology_.overhead_s(route),
                       .limited = limited});
  return uint32_t(channels_.size()) - 1;
}

Route Network::route_of(const Channel& c) const {
  Route route = topology_.route(c.from, c.to);
  for (int i = 0; i < route.count; ++i)
    route.links[size_t(i)] = topology_.representative(route.links[size_t(i)], simulated_);
  return route;
}

void Network::seal() {
  std::vector<int> users(size_t(topology_.num_links()), 0);
  for (const Channel& c : channels_)
    for (const int link : route_of(c)) ++users[size_t(link)];
  for (Channel& c : channels_) {
    const Route route = route_of(c);
    const auto own = [&](int link) { return users[size_t(link)] == 1; };
    c.alone = kind_.alone_is_fast && std::all_of(route.begin(), route.end(), own);
    if (c.alone) continue;
    c.first_link = uint32_t(links_.size());
    links_.insert(links_.end(), route.begin(), route.end());
    if (c.limited) links_.push_back(share_.add_link(1 / c.seconds_per_byte));
    c.num_links = uint32_t(links_.size()) - c.first_link;
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
  check(other.bytes == bytes, "a message from rank ", c.from, " to rank ", c.to, " has ",
        is_send ? bytes : other.bytes, " bytes on one side and ", is_send ? other.bytes : bytes,
        " on the other");
  start(channel, is_send ? side : other.side, is_send ? other.side : side, bytes);
}

void Network::start(uint32_t channel, const MessageSide& send, const MessageSide& recv,
                    double bytes) {
  ++messages;
  Channel& c = channels_[channel];
  const double ready = std::max(send.posted_s, recv.posted_s) + c.alpha;
  if (c.alone) {
    c.free_at = std::max(ready, c.free_at) + bytes * c.seconds_per_byte;
    done(send, recv, c.free_at);
    return;
  }
  ++shared_messages;
  const uint32_t id = take_slot(messages_, free_messages_);
  messages_[id] = {send, recv, bytes, channel, kNoSlot};
  events_.push(ready, EventKind::kLatencyOver, id);
}

void Network::latency_over(uint32_t message, double now) {
  Channel& c = channels_[messages_[message].channel];
  if (!c.busy) {
    c.busy = true;
    begin_flow(message, now);
    return;
  }
  append(messages_, message, c.queue_first, c.queue_last);
}

void Network::begin_flow(uint32_t message, double now) {
  const uint32_t flow = take_slot(flows_, free_flows_);
  const Channel& c = channels_[messages_[message].channel];
  Flow& f = flows_[flow];
  f.message = message;
  f.left = messages_[message].bytes;
  f.share = kNoSlot;
  if (kind_.pauses) {
    flows_of_[c.sender].push_back(flow);
    flows_of_[c.receiver].push_back(flow);
  }
  if (may_flow(c)) run_flow(flow, now);
}

void Network::run_flow(uint32_t flow, double now) {
  Flow& f = flows_[flow];
  const Channel& c = channels_[messages_[f.message].channel];
  crossed_.assign(links_.begin() + c.first_link, links_.begin() + c.first_link + c.num_links);
  if (is_slowed())
    for (const uint32_t rank : {c.sender, c.receiver})
      if (!progresses_[rank]) crossed_.push_back(first_slow_link_ + int(rank));
  f.share = share_.add(crossed_);
  f.rate = 0;
  f.since = now;
  if (f.share >= flow_of_share_.size()) flow_of_share_.resize(f.share + 1);
  flow_of_share_[f.share] = flow;
  count_flowing(Rank(c.sender), 1, now);
  count_flowing(Rank(c.receiver), 1, now);
}

void Network::pause_flow(uint32_t flow, double now) {
  Flow& f = flows_[flow];
  const Channel& c = channels_[messages_[f.message].channel];
  f.left -= f.rate * (now - f.since);
  share_.remove(f.share);
  f.share = kNoSlot;
  ++f.version;  // its end is not known any more
  count_flowing(Rank(c.sender), -1, now);
  count_flowing(Rank(c.receiver), -1, now);
}

void Network::count_flowing(Rank rank, int change, double now) {
  int& count = flowing_[size_t(rank)];
  const bool before = count > 0;
  count += change;
  if (before != (count > 0) && flowing_changed) flowing_changed(rank, now);
}

void Network::flow_ends(uint32_t flow, uint32_t version, double now) {
  if (flows_[flow].version != version) return;
  const uint32_t message = flows_[flow].message;
  const Message m = messages_[message];
  Channel& c = channels_[m.channel];
  pause_flow(flow, now);
  if (kind_.pauses)
    for (const uint32_t rank : {c.sender, c.receiver}) {
      auto& list = flows_of_[rank];
      list.erase(std::find(list.begin(), list.end(), flow));
    }
  free_flows_.push_back(flow);
  free_messages_.push_back(message);
  c.busy = c.queue_first != kNoSlot;
  if (c.busy) {
    const uint32_t next = c.queue_first;
    c.queue_first = messages_[next].next;
    begin_flow(next, now);
  }
  done(m.send, m.recv, now);
}

void Network::settle(double now) {
  for (const FairShare::Flow share : share_.update()) {
    const uint32_t flow = flow_of_share_[share];
    Flow& f = flows_[flow];
    f.left = std::max(0.0, f.left - f.rate * (now - f.since));
    f.since = now;
    f.rate = share_.rate(share);
    events_.push(now + f.left / f.rate, EventKind::kFlowEnds, flow, ++f.version);
  }
}

void Network::set_progress(Rank rank, bool progresses, double now) {
  if (progresses_[size_t(rank)] == progresses) return;
  progresses_[size_t(rank)] = progresses;
  for (const uint32_t flow : flows_of_[size_t(rank)]) {
    const Flow& f = flows_[flow];
    const Message& message = messages_[f.message];
    // Over at this very moment, but for rounding: its end is the next event.
    const double left = f.left - f.rate * (now - f.since);
    if (f.share != kNoSlot && left <= 1e-9 * message.bytes) continue;
    const bool may = may_flow(channels_[message.channel]);
    if (is_slowed()) pause_flow(flow, now);  // its links change
    if (may && f.share == kNoSlot) run_flow(flow, now);
    if (!may && f.share != kNoSlot) pause_flow(flow, now);
  }
}

}  // namespace longnet
