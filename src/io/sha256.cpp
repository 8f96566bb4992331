#include "io/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "core/check.h"

namespace longnet {

namespace {

constexpr std::string_view kSeal = ",\"sha256\":\"";

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  check(ok == 1, "EVP_Digest(sha256) returned ", ok);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

std::string sealed(std::string_view line) {
  const std::string body(line.substr(0, line.size() - 1));
  return concat(body, kSeal, sha256_hex(body).substr(0, 16), "\"}");
}

std::optional<bool> seal_holds(std::string_view line) {
  const size_t at = line.rfind(kSeal);
  if (at == std::string_view::npos || at + kSeal.size() + 18 != line.size()) return std::nullopt;
  return line == sealed(concat(line.substr(0, at), "}"));
}

}  // namespace longnet
