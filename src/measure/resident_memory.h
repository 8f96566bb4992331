// Resident memory of this process: what the system says that its buffers take.
//
//   const ResidentGrowth growth;  ... allocate, use and free 300 MiB ...   *growth.bytes(): 300 MiB
#pragma once
#include <cstdint>
#include <optional>

namespace longnet {

// Now, and at the most since the process began or a ResidentGrowth did. Nothing without Linux's
// /proc.
std::optional<int64_t> resident_bytes();
std::optional<int64_t> peak_resident_bytes();

// Growth of the peak from here on, whatever the process had before. Not while another watches: the
// system keeps one peak per process.
class ResidentGrowth {
 public:
  // Hands free pages back to the system first: buffers that took those would seem to take nothing.
  ResidentGrowth();
  // Nothing where the system does not tell, or does not forget the earlier peak.
  std::optional<int64_t> bytes() const;

 private:
  std::optional<int64_t> before_;
};

}  // namespace longnet
