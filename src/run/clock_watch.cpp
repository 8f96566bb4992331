#include "run/clock_watch.h"

#include <algorithm>
#include <cmath>

#include "core/cuda/device.h"

namespace longnet {

void ClockWatch::look() {
  const DeviceClocks now = read_device_clocks(current_device());
  if (!now.known) return;
  if (!known_ || now.sm_mhz < worst_.sm_mhz) worst_.sm_mhz = now.sm_mhz;
  worst_.power_w = std::max(worst_.power_w, now.power_w);
  worst_.temperature_c = std::max(worst_.temperature_c, now.temperature_c);
  throttled_ = throttled_ || now.throttled();
  if (!known_) slowed_before_s_ = now.slowed_s;
  slowed_s_ = now.slowed_s - slowed_before_s_;
  known_ = true;
}

void ClockWatch::write(PointRecord& record, Communicator* comm) const {
  const bool counted = known_ && !std::isnan(slowed_s_);
  double values[7] = {known_ ? 0.0 : 1.0,           double(-worst_.sm_mhz), worst_.power_w,
                      double(worst_.temperature_c), throttled_ ? 1.0 : 0.0, counted ? 0.0 : 1.0,
                      counted ? slowed_s_ : 0.0};
  if (comm != nullptr) comm->all_max(values);
  if (values[0] > 0) return;  // some rank's NVML does not tell
  record.metrics["device_sm_mhz"] = -values[1];
  record.metrics["device_power_w"] = values[2];
  record.metrics["device_temperature_c"] = values[3];
  record.metrics["device_throttled"] = values[4];
  if (values[5] == 0) record.metrics["device_slowed_s"] = values[6];
}

}  // namespace longnet
