"""Loads cubins and launches kernels through the CUDA driver, with ctypes: no compiled extension, no other package."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from oscine.kernels.cuda.program import Launch

_CLUSTER_DIMENSION, _PROGRAMMATIC = 4, 6  # CUlaunchAttributeID
_MAX_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
_DEFAULT_SHARED_BYTES = 48 << 10  # more must be requested


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


class LaunchAttributeValue(ctypes.Union):
    _fields_ = [("cluster", ctypes.c_uint * 3), ("flag", ctypes.c_int), ("room", ctypes.c_char * 64)]


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", LaunchAttributeValue)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@cache
def library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"there is no CUDA driver on this machine ({error})") from error


def _check(status: int, call: str) -> None:
    if status:
        text = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(text))
        raise DriverError(f"{call} failed with {status}: {(text.value or b'unknown').decode()}")


def launch_attributes(launch: Launch) -> list[LaunchAttribute]:
    attributes = []
    if launch.programmatic:
        attributes.append(LaunchAttribute(id=_PROGRAMMATIC, value=LaunchAttributeValue(flag=1)))
    if launch.cluster > 1:
        shape = (ctypes.c_uint * 3)(launch.cluster, 1, 1)
        attributes.append(LaunchAttribute(id=_CLUSTER_DIMENSION, value=LaunchAttributeValue(cluster=shape)))
    return attributes


class Kernel:
    """A loaded kernel. The thread must have a CUDA context, as after any CUDA call of torch."""

    def __init__(self, cubin: bytes, name: str) -> None:
        self.name = name
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(library().cuModuleLoadData(ctypes.byref(self._module), cubin), f"loading {name}")
        found = library().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(found, f"finding {name}")
        self._allowed_bytes = _DEFAULT_SHARED_BYTES

    def launch(self, launch: Launch, arguments: ctypes.Structure, stream: int) -> None:
        """Enqueues a launch; the arguments are copied before it returns. A CUDA graph that captures `stream` captures
        the launch."""
        if launch.shared_bytes > self._allowed_bytes:
            words = (self._function, _MAX_DYNAMIC_SHARED_BYTES, launch.shared_bytes)
            _check(library().cuFuncSetAttribute(*words), f"{self.name}: {launch.shared_bytes} bytes of shared memory")
            self._allowed_bytes = launch.shared_bytes
        attributes = launch_attributes(launch)
        config = LaunchConfig(
            grid=(ctypes.c_uint * 3)(*launch.grid),
            block=(ctypes.c_uint * 3)(launch.threads, 1, 1),
            shared_bytes=launch.shared_bytes,
            stream=stream,
            attributes=(LaunchAttribute * len(attributes))(*attributes),
            attribute_count=len(attributes),
        )
        pointers: Any = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        status = library().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None)
        _check(status, f"launching {self.name} with {launch}")
