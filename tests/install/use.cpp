// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <prezero/engine.h>

int main() {
    pz_engine *engine = nullptr;
    pz_error err{};
    if (pz_engine_open("/nonexistent", nullptr, &engine, &err) != PZ_E_NOTFOUND) return 1;
    std::printf("prezero %s\n", pz_version());
}
