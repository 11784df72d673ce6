"""Local stand-ins of the services that real SDKs speak to: scriptable, with the faults of the real ones, recording what they were sent."""
