#include "digest.hpp"

#include <openssl/evp.h>
// The dispatching entry points take AVX2 or AVX-512 where the processor has it; the digests are the
// same.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <cstdio>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {
namespace {

Digest from(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

Digest xxh3(std::span<const std::byte> bytes) {
  return from(XXH3_128bits(bytes.data(), bytes.size()));
}

struct DigestStream::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->xxh);
}
DigestStream::~DigestStream() = default;
void DigestStream::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
Digest DigestStream::value() const { return from(XXH3_128bits_digest(state_->xxh)); }

std::string to_hex(const Digest& digest) {
  char text[33];
  std::snprintf(text, sizeof text, "%016lx%016lx", static_cast<unsigned long>(digest[0]),
                static_cast<unsigned long>(digest[1]));
  return text;
}

std::string sha256_hex(std::string_view text) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  VALIDATE(EVP_Digest(text.data(), text.size(), bytes, &size, EVP_sha256(), nullptr) == 1,
           ExitCode::unfit_environment,
           "libcrypto refuses SHA-256: check the OpenSSL installation");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", bytes[i]);
    hex += pair;
  }
  return hex;
}

}  // namespace trireme::checkpoint
