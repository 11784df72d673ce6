"""What happens around every RPC of every service: tracing, auth, deadline, validation, error mapping, metrics."""

from services.common.interceptors.auth import Authenticator, CapabilityAuthenticator, ServiceAuthenticator
from services.common.interceptors.chain import ServiceInterceptor

__all__ = ["Authenticator", "CapabilityAuthenticator", "ServiceAuthenticator", "ServiceInterceptor"]
