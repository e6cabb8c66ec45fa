/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads libprezero_cuda.so, and forwards the public kernels to it. */
#include "backend/cuda_module.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include "base/file.h"
#include "base/knobs.h"

/* ---- where ---- */
/* Directory of the object that holds this function, on the heap; NULL if the system does not say. */
static char *own_directory(void) {
    Dl_info info;
    struct link_map *map = NULL;
    char exe[4096];
    const char *path = NULL;
    if (dladdr1((const void *)pz_cuda_module_load, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name[0]) {
        path = map->l_name;
    } else {
        ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
        if (n <= 0) return NULL;
        exe[n] = 0;
        path = exe;
    }
    const char *slash = strrchr(path, '/');
    return slash ? pz_strndup(path, (size_t)(slash - path) + 1) : NULL;
}

static pz_status open_file(const char *path, void **handle, pz_error *err) {
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*handle) return PZ_OK;
    const char *why = dlerror();
    return pz_fail(err, PZ_E_UNSUPPORTED, "no GPU support: %s", why ? why : path);
}

static pz_status open_module(void **handle, pz_error *err) {
    static const char *const places[] = {PZ_CUDA_MODULE_FILE, "../lib/" PZ_CUDA_MODULE_FILE,
                                         "../" PZ_INSTALL_LIBDIR "/" PZ_CUDA_MODULE_FILE};
    const char *named;
    PZ_TRY(pz_knob_text(PZ_KNOB_CUDA_MODULE, &named, err));
    if (*named) return open_file(named, handle, err);
    char *dir = own_directory();
    for (size_t i = 0; dir && i < sizeof places / sizeof *places; i++) {
        char *path = pz_path_join(dir, places[i]);
        bool there = path && pz_file_exists(path);
        pz_status st = there ? open_file(path, handle, err) : PZ_E_NOTFOUND;
        pz_free(path);
        if (!there) continue;
        pz_free(dir);
        return st; /* a module that is there and does not load is not passed over for another one */
    }
    pz_free(dir);
    *handle = dlopen(PZ_CUDA_MODULE_FILE, RTLD_NOW | RTLD_LOCAL);
    if (*handle) return PZ_OK;
    return pz_fail(err, PZ_E_UNSUPPORTED,
                   "no GPU support: " PZ_CUDA_MODULE_FILE
                   " is not beside this program or library, and the system does not find it (%s)",
                   dlerror());
}

/* ---- loading ---- */
static pz_status check_module(void *handle, const pz_cuda_module **out, pz_error *err) {
    const pz_cuda_module *m = dlsym(handle, PZ_CUDA_MODULE_SYMBOL);
    if (!m) return pz_fail(err, PZ_E_UNSUPPORTED, "no GPU support: the module has no " PZ_CUDA_MODULE_SYMBOL);
    if (m->abi != PZ_CUDA_ABI || !pz_streq(m->version, pz_version()))
        return pz_fail(err, PZ_E_UNSUPPORTED,
                       "no GPU support: " PZ_CUDA_MODULE_FILE " is of another build than this library (interface %d, "
                       "expected %d)",
                       m->abi, PZ_CUDA_ABI);
    *out = m;
    return m->probe(err);
}

static pz_status load_once(const pz_cuda_module **out, pz_error *err) {
    void *handle;
    PZ_TRY(open_module(&handle, err));
    pz_status st = check_module(handle, out, err);
    if (st != PZ_OK) dlclose(handle);
    return st;
}

pz_status pz_cuda_module_load(const pz_cuda_module **out, pz_error *err) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pz_cuda_module *loaded;
    *out = __atomic_load_n(&loaded, __ATOMIC_ACQUIRE);
    if (*out) return PZ_OK;
    pthread_mutex_lock(&mutex);
    *out = loaded;
    pz_status st = loaded ? PZ_OK : load_once(out, err);
    if (st == PZ_OK) __atomic_store_n(&loaded, *out, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    return st;
}

pz_status pz_backend_cuda(const pz_backend_api **out, pz_error *err) {
    const pz_cuda_module *m;
    PZ_TRY(pz_cuda_module_load(&m, err));
    *out = m->backend;
    return PZ_OK;
}

/* ---- public kernels ---- */
/* Copies the caller's arguments over zeros, so that older callers (smaller size) get the defaults of newer fields. */
static pz_status take_args(const char *function, const void *in, void *out, size_t size, pz_error *err) {
    if (!in) return pz_fail(err, PZ_E_INVAL, "%s: needs arguments", function);
    size_t given;
    memcpy(&given, in, sizeof given);
    if (given < sizeof given || given > size)
        return pz_fail(err, PZ_E_INVAL, "%s: the arguments' size is %zu, set it to the size of their struct, %zu",
                       function, given, size);
    memset(out, 0, size);
    memcpy(out, in, given);
    memcpy(out, &size, sizeof size);
    return PZ_OK;
}

pz_status pz_gemm_workspace(const pz_gemm_args *args, size_t *bytes, pz_error *err) {
    const pz_cuda_module *m;
    pz_gemm_args a;
    PZ_TRY(take_args(__func__, args, &a, sizeof a, err));
    PZ_NEED(bytes, "a place for the number of bytes", err);
    PZ_TRY(pz_cuda_module_load(&m, err));
    return m->gemm_workspace(&a, bytes, err);
}

pz_status pz_gemm(const pz_gemm_args *args, pz_error *err) {
    const pz_cuda_module *m;
    pz_gemm_args a;
    PZ_TRY(take_args(__func__, args, &a, sizeof a, err));
    PZ_NEED(a.x && a.w && a.y, "x, w and y", err);
    PZ_TRY(pz_cuda_module_load(&m, err));
    return m->gemm(&a, err);
}

pz_status pz_weight_norms(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err) {
    const pz_cuda_module *m;
    PZ_NEED(w && w_norm, "w and w_norm", err);
    PZ_TRY(pz_cuda_module_load(&m, err));
    return m->weight_norms(w, ldw, n, k, w_norm, stream, err);
}

pz_status pz_rms_norm(const pz_norm_args *args, pz_error *err) {
    const pz_cuda_module *m;
    pz_norm_args a;
    PZ_TRY(take_args(__func__, args, &a, sizeof a, err));
    PZ_NEED(a.x.data && a.w && a.y.data, "x, w and y", err);
    PZ_TRY(pz_cuda_module_load(&m, err));
    return m->rms_norm(&a, err);
}
