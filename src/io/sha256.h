// SHA-256 digests, and lines of JSON that carry their own (a seal).
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace longnet {

std::string sha256_hex(std::string_view bytes);  // 64 lower-case digits

// {"walk":0,...} becomes {"walk":0,...,"sha256":"first 16 digits, of what stands before"}.
std::string sealed(std::string_view line);
// False: the line was changed after it was sealed. Nothing: it has no seal.
std::optional<bool> seal_holds(std::string_view line);

}  // namespace longnet
